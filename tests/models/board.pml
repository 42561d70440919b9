/* A model of src/comm/shm/board.cpp, for Spin: calls pass through slots that are used again and again; any rank does any
 * chunk; whoever waits sleeps until it is woken, with no time-out to help.
 *
 * Each line of a rank is one access to shared memory, as in the code, where all of them are sequentially consistent.
 * Checked in every order in which the ranks' accesses can follow each other: each chunk is done once; a call that looks
 * done is done; nobody reads an entry that its owner has filled in anew; nobody sleeps for ever.
 *
 * -DBESIDE: rank 0 has a second thread that enters calls while the first one runs them; whoever waits for room must
 * then also look whether there is something to run.
 *
 * -DMEETINGS: every second call has no chunks.
 *
 * -DBROKEN_BELL, -DBROKEN_ENTER, -DBROKEN_ORDER, -DBROKEN_ROOM, -DBROKEN_BESIDE: the protocol without one of its parts,
 * in which Spin finds a fault.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CALLS
#define CALLS 4
#endif
#define CHUNKS 2
#ifdef MEETINGS
#define HAS_CHUNKS(call) ((call) % 2)
#else
#define HAS_CHUNKS(call) true
#endif

#define SLOT(call) ((call) % SLOTS)
#define GENERATION(call) ((call) / SLOTS + 1)

byte entered[RANKS];
byte gone[RANKS];
byte bell[RANKS];
bit asleep[RANKS];

/* The counters of a slot: generation and count are one word. There is a claimed counter for each rank's share of the
 * chunks, and each is used like this one. */
typedef Counter { byte generation; byte count }
Counter claimed[SLOTS];
Counter done[SLOTS];

/* Not shared memory, but what must hold. */
byte in_entry[SLOTS * RANKS];  /* the call whose terms are there, + 1 */
byte times_done[CALLS * CHUNKS];

inline renew(counter, call) {
  atomic {
    if
    :: counter.generation < GENERATION(call) -> counter.generation = GENERATION(call); counter.count = 0
    :: else -> skip
    fi
  }
}

/* answer = all ranks have entered the call */
inline look_has_all(call) {
  answer = 1;
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS ->
     if
     :: entered[other] <= call -> answer = 0; break
     :: else -> other++
     fi
  od
}

inline look_is_done(call) {
  answer = (done[SLOT(call)].generation > GENERATION(call) ||
            (done[SLOT(call)].generation == GENERATION(call) && done[SLOT(call)].count >= CHUNKS))
}

inline look_has_room(call) {
  answer = 1;
  other = 0;
  do
  :: call < SLOTS || other == RANKS -> break
  :: else ->
#ifdef BROKEN_ROOM
     answer = 1; break
#else
     if
     :: gone[other] <= call - SLOTS -> answer = 0; break
     :: else -> other++
     fi
#endif
  od
}

inline wake_sleepers() {
  target = 0;
  do
  :: target == RANKS -> break
  :: target < RANKS && target == me -> target++
  :: target < RANKS && target != me ->
     if
     :: asleep[target] == 0 -> target++
     :: else ->
        atomic { was = asleep[target]; asleep[target] = 0 };
        if
        :: was == 1 -> bell[target]++
        :: else -> skip
        fi;
        target++
     fi
  od
}

/* With an order weaker than the sequentially consistent one a processor may look first. */
#ifdef BROKEN_ORDER
#define SAY_AND_LOOK(look) look; asleep[me] = 1
#else
#define SAY_AND_LOOK(look) asleep[me] = 1; look
#endif

/* `look` sets answer. */
#define WAIT(look) \
  do \
  :: true -> \
     heard = bell[me]; \
     SAY_AND_LOOK(look); \
     if \
     :: answer == 1 -> asleep[me] = 0; break \
     :: else -> SLEEP; asleep[me] = 0 \
     fi; \
     look; \
     if \
     :: answer == 1 -> break \
     :: else -> skip \
     fi \
  od

/* The kernel's: returns at once where the word is not what the sleeper has seen. */
#ifdef BROKEN_BELL
#define SLEEP heard = bell[me]; (bell[me] != heard)
#else
#define SLEEP (bell[me] != heard)
#endif

inline enter(call) {
  in_entry[SLOT(call) * RANKS + me] = call + 1;
  if
  :: HAS_CHUNKS(call) -> renew(claimed[SLOT(call)], call); renew(done[SLOT(call)], call)
  :: else -> skip
  fi;
  entered[me] = call + 1;
#ifndef BROKEN_ENTER
  look_has_all(call);
  if
  :: answer == 1 -> wake_sleepers()
  :: else -> skip
  fi
#endif
}

inline read_entries(call) {
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS -> assert(in_entry[SLOT(call) * RANKS + other] == call + 1); other++
  od
}

inline work_on(call) {
  WAIT(look_has_all(call));
  read_entries(call);
  if
  :: HAS_CHUNKS(call) ->
       do
       :: true ->
          atomic {
            if
            :: claimed[SLOT(call)].generation == GENERATION(call) && claimed[SLOT(call)].count < CHUNKS ->
               chunk = claimed[SLOT(call)].count; claimed[SLOT(call)].count++; taken = 1
            :: else -> taken = 0
            fi
          };
          if
          :: taken == 0 -> break
          :: else ->
             times_done[call * CHUNKS + chunk]++;
             assert(times_done[call * CHUNKS + chunk] == 1);
             assert(done[SLOT(call)].generation == GENERATION(call));
             atomic { done[SLOT(call)].count++; answer = (done[SLOT(call)].count == CHUNKS) };
             if
             :: answer == 1 -> wake_sleepers()
             :: else -> skip
             fi
          fi
       od;
       WAIT(look_is_done(call));
       assert(times_done[call * CHUNKS] == 1 && times_done[call * CHUNKS + CHUNKS - 1] == 1);
  :: else -> skip
  fi;
  gone[me] = call + 1;
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS && entered[other] == call + SLOTS -> wake_sleepers(); break
  :: else -> other++
  od
}

#ifdef BESIDE
#define ENTER atomic { locked[me] == 0 -> locked[me] = 1 }
#define ENTERED locked[me] = 0
bit locked[RANKS];
#ifdef BROKEN_BESIDE
#define look_has_room_or_entered(call) look_has_room(entered[me])
#else
inline look_has_room_or_entered(call) {
  if
  :: entered[me] > call -> answer = 1
  :: else -> look_has_room(call)
  fi
}
#endif

/* The thread that runs rank 0's calls, and enters those for which it finds room. */
proctype Runner(byte me) {
  byte next_run = 0, other = 0, target = 0, heard = 0, chunk = 0, call = 0;
  bit answer = 0, was = 0, taken = 0;
  do
  :: next_run == CALLS -> break
  :: else ->
     ENTER;
     if
     :: entered[me] < CALLS ->
        call = entered[me];
        look_has_room(call);
        if
        :: answer == 1 -> enter(call)
        :: else -> skip
        fi
     :: else -> skip
     fi;
     call = 0;
     taken = (next_run < entered[me]);
     ENTERED;
     if
     :: taken == 1 -> work_on(next_run); next_run++
     :: else -> WAIT(look_has_room_or_entered(next_run))
     fi
  od
}

/* Another one of its threads, which may enter calls meanwhile and runs none. */
proctype Beside(byte me) {
  byte other = 0, target = 0, call = 0;
  bit answer = 0, was = 0;
end:
  do
  :: atomic { locked[me] == 0 && entered[me] < CALLS -> locked[me] = 1 };
     call = entered[me];
     look_has_room(call);
     if
     :: answer == 1 -> enter(call); ENTERED
     :: else -> ENTERED; break
     fi
  :: true -> break
  od
}
#endif

/* Enters calls as long as there is room, at any time, and runs them in their order. A rank may also let the others do
 * all of a call's work and only wait for it: that is a run in which it gets no chunk. */
proctype Rank(byte me) {
  byte next_entered = 0, next_run = 0, other = 0, target = 0, heard = 0, chunk = 0;
  bit answer = 0, was = 0, taken = 0;
  do
  :: next_run == CALLS -> break
  :: next_entered < CALLS && next_entered < next_run + SLOTS ->
     look_has_room(next_entered);
     if
     :: answer == 1 -> enter(next_entered); next_entered++
     :: answer == 0 && next_entered == next_run ->
        WAIT(look_has_room(next_entered)); enter(next_entered); next_entered++
     :: else -> skip
     fi
  :: next_run < next_entered -> work_on(next_run); next_run++
  od
}

init {
  byte rank = 0;
  atomic {
    do
    :: rank == RANKS -> break
#ifdef BESIDE
    :: rank == 0 -> run Runner(0); run Beside(0); rank++
    :: rank > 0 && rank < RANKS -> run Rank(rank); rank++
#else
    :: else -> run Rank(rank); rank++
#endif
    od
  }
}
