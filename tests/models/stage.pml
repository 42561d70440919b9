/* A model of the lock step of src/comm/shm/board.cpp and of its use in transfers.cpp, for Spin: exchanges of pieces
 * through the ranks' stages, of which one half is used at a time. Each exchange is a move (written, a step, read) or a
 * reduction (written, a step, the own share combined in place, a step, the others' shares read), in every sequence.
 *
 * Checked in every order of the ranks' accesses: who reads a stage finds what this exchange has laid there; nobody
 * sleeps for ever, with no time-out to help.
 *
 * -DBROKEN_HALVES, -DBROKEN_STEP, -DBROKEN_WAKE: the protocol without one of its parts, in which Spin finds a fault.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef EXCHANGES
#define EXCHANGES 4
#endif

#ifdef BROKEN_HALVES
#define HALF(exchange) 0
#else
#define HALF(exchange) ((exchange) % 2)
#endif
/* The shares of a rank's stage, one a rank. */
#define SHARE(rank, exchange, index) stage[((rank) * 2 + HALF(exchange)) * RANKS + (index)]
#define LAID(exchange) (2 * (exchange) + 1)
#define COMBINED(exchange) (2 * (exchange) + 2)

byte steps[RANKS];
byte bell[RANKS];
bit asleep[RANKS];
byte stage[RANKS * 2 * RANKS];
bit is_move[EXCHANGES];

inline look_all_reached() {
  answer = 1;
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS ->
     if
     :: steps[other] < reached -> answer = 0; break
     :: else -> other++
     fi
  od
}

inline wake_sleepers() {
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS && other == me -> other++
  :: other < RANKS && other != me ->
     if
     :: asleep[other] == 0 -> other++
     :: else ->
        atomic { was = asleep[other]; asleep[other] = 0 };
        if
        :: was == 1 -> bell[other]++
        :: else -> skip
        fi;
        other++
     fi
  od
}

inline meet_step() {
  reached = steps[me] + 1;
  steps[me] = reached;
  look_all_reached();
#ifndef BROKEN_WAKE
  if
  :: answer == 1 -> wake_sleepers()
  :: else -> skip
  fi;
#endif
  do
  :: true ->
     heard = bell[me];
     asleep[me] = 1;
     look_all_reached();
     if
     :: answer == 1 -> asleep[me] = 0; break
     :: else -> (bell[me] != heard); asleep[me] = 0
     fi;
     look_all_reached();
     if
     :: answer == 1 -> break
     :: else -> skip
     fi
  od
}

/* Share `index` of each other rank's stage, or where `of_owner` is set the one that its owner has combined. */
inline read_others(value, index, of_owner) {
  other = 0;
  do
  :: other == RANKS -> break
  :: other < RANKS && other == me -> other++
  :: other < RANKS && other != me && of_owner -> assert(SHARE(other, exchange, other) == value); other++
  :: other < RANKS && other != me && !of_owner -> assert(SHARE(other, exchange, index) == value); other++
  od
}

proctype Rank(byte me) {
  byte exchange = 0, other = 0, reached = 0, heard = 0;
  bit answer = 0, was = 0;
  do
  :: exchange == EXCHANGES -> break
  :: else ->
     other = 0;
     do
     :: other == RANKS -> break
     :: other < RANKS -> SHARE(me, exchange, other) = LAID(exchange); other++
     od;
     meet_step();
     read_others(LAID(exchange), me, false);
     if
     :: is_move[exchange] -> skip
     :: else ->
        SHARE(me, exchange, me) = COMBINED(exchange);
#ifndef BROKEN_STEP
        meet_step();
#endif
        read_others(COMBINED(exchange), 0, true)
     fi;
     exchange++
  od
}

init {
  byte next = 0;
  atomic {
    do
    :: next == EXCHANGES -> break
    :: next < EXCHANGES -> is_move[next] = 1; next++
    :: next < EXCHANGES -> next++
    od;
    next = 0;
    do
    :: next == RANKS -> break
    :: else -> run Rank(next); next++
    od
  }
}
