/* A model of src/comm/shm/mail.cpp, for Spin: messages from rank 0 to rank 1 through a few letters. A long message of
 * PIECES pieces and a short one are sent at the same time by two threads; what nobody waits for yet
 * is stashed by whoever waits. The receiver takes them in two threads, or with -DONE_RECEIVER the short one first. With
 * -DANSWER the short one is sent when the long one has been received, so that nobody may hold that up.
 *
 * Checked in every order of the threads' accesses: each piece arrives once, with what it was sent with; nobody sleeps
 * for ever, with no time-out to help.
 *
 * -DBROKEN_STASH, -DBROKEN_BELL, -DBROKEN_RING: the protocol without one of its parts, in which Spin finds a fault.
 */
#ifndef LETTERS
#define LETTERS 2
#endif
#ifndef PIECES
#define PIECES 3
#endif

/* A letter's state: EMPTY, TAKEN, or the piece that is in it: 0 to PIECES - 1 of the long message, SHORT. */
#define SHORT PIECES
#define EMPTY 200
#define TAKEN 201

byte state[LETTERS];
byte data[LETTERS];
byte bell[2];      /* of rank 0, of rank 1 */
byte sleepers[2];

/* The receiver's own memory, under its lock. */
bit stashed[PIECES + 1];
bit is_expected[2];  /* the long message, the short one */
byte received[PIECES + 1];

#define MESSAGE_OF(piece) ((piece) == SHORT)

inline ring(rank) {
  if
  :: sleepers[rank] == 0 -> skip
  :: else -> bell[rank]++
  fi
}

inline find_empty() {
  letter = 0;
  found = 0;
  do
  :: letter == LETTERS -> break
  :: letter < LETTERS ->
     if
     :: atomic { state[letter] == EMPTY -> state[letter] = TAKEN }; found = 1; break
     :: else -> letter++
     fi
  od
}

inline find_piece() {
  letter = 0;
  found = 0;
  do
  :: letter == LETTERS -> break
  :: letter < LETTERS ->
     if
     :: atomic { state[letter] == piece -> state[letter] = TAKEN }; found = 1; break
     :: else -> letter++
     fi
  od;
  if
  :: found == 0 ->
     atomic {
       if
       :: stashed[piece] -> stashed[piece] = 0; found = 2
       :: else -> skip
       fi
     }
  :: else -> skip
  fi
}

inline stash_unexpected() {
  letter = 0;
  do
  :: letter == LETTERS -> break
  :: letter < LETTERS ->
     seen = state[letter];
     if
     :: seen == EMPTY || seen == TAKEN -> skip
#ifdef BROKEN_STASH
     :: seen < SHORT -> skip  /* a long message waits in the letters for its receiver */
#endif
     :: else ->
        if
        :: is_expected[MESSAGE_OF(seen)] -> skip
        :: else ->
           if
           :: atomic { state[letter] == seen -> state[letter] = TAKEN };
              assert(data[letter] == seen);
              atomic { assert(!stashed[seen]); stashed[seen] = 1 };
              state[letter] = EMPTY;
              ring(0);
#ifndef BROKEN_RING
              ring(1)
#else
              skip
#endif
           :: else -> skip
           fi
        fi
     fi;
     letter++
  od
}

/* The kernel's: returns at once where the word is not what the sleeper has seen. */
#ifdef BROKEN_BELL
#define SLEEP(rank) heard = bell[rank]; (bell[rank] != heard)
#else
#define SLEEP(rank) (bell[rank] != heard)
#endif

/* `find` sets found. Rank 0 receives nothing, so that it has nothing to stash. */
#define WAIT_FOR(find, rank, stash) \
  do \
  :: true -> \
     heard = bell[rank]; \
     sleepers[rank]++; \
     stash; \
     find; \
     if \
     :: found == 0 -> SLEEP(rank) \
     :: else -> skip \
     fi; \
     sleepers[rank]--; \
     if \
     :: found != 0 -> break \
     :: else -> skip \
     fi; \
     find; \
     if \
     :: found != 0 -> break \
     :: else -> skip \
     fi \
  od

proctype Sender(byte piece; byte last) {
  byte letter = 0, heard = 0, found = 0;
#ifdef ANSWER
  (piece < SHORT || received[PIECES - 1] == 1);
#endif
  do
  :: piece > last -> break
  :: else ->
     WAIT_FOR(find_empty(), 0, skip);
     data[letter] = piece;
     state[letter] = piece;
     ring(1);
     piece++
  od
}

inline receive(first, last) {
  is_expected[MESSAGE_OF(first)] = 1;
  piece = first;
  do
  :: piece > last -> break
  :: else ->
     WAIT_FOR(find_piece(), 1, stash_unexpected());
     received[piece]++;
     assert(received[piece] == 1);
     if
     :: found == 1 -> assert(data[letter] == piece); state[letter] = EMPTY; ring(0)
     :: else -> skip
     fi;
     piece++
  od;
  is_expected[MESSAGE_OF(first)] = 0
}

#ifdef ONE_RECEIVER
proctype Receiver() {
  byte letter = 0, heard = 0, found = 0, seen = 0, piece = 0;
  receive(SHORT, SHORT);
  receive(0, PIECES - 1)
}
#else
proctype Receiver(byte first; byte last) {
  byte letter = 0, heard = 0, found = 0, seen = 0, piece = 0;
  receive(first, last)
}
#endif

init {
  byte letter = 0;
  atomic {
    do
    :: letter == LETTERS -> break
    :: else -> state[letter] = EMPTY; letter++
    od;
    run Sender(0, PIECES - 1);
    run Sender(SHORT, SHORT);
#ifdef ONE_RECEIVER
    run Receiver()
#else
    run Receiver(0, PIECES - 1);
    run Receiver(SHORT, SHORT)
#endif
  }
}
