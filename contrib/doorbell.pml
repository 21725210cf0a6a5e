/* doorbell.pml: the sleep handshake of src/ipc/doorbell.h as a Promela model with explicit store buffers.
 *
 * Verify that no wake-up is lost:
 *
 *     spin -a contrib/doorbell.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * and see how one is lost when the stores are release and the loads acquire only (an error; the last line shows the
 * shortest way to it):
 *
 *     spin -a -DRELEASE_ACQUIRE contrib/doorbell.pml && cc -O2 -DSAFETY -DREACH -o pan pan.c && ./pan -m100000 -i
 *     spin -t -p -g -DRELEASE_ACQUIRE contrib/doorbell.pml
 *
 * tests/scripts/promela.sh does both and runs in `make check` where spin is installed (Debian package spin).  With -DMAD
 * one more front clears everybody's ready bits (20 s, 1 GB).
 *
 * What is modelled.  FRONTS fronts publish RECORDS records each; one intake thread reads them.  Labels are those of
 * doorbell.h.  Every thread has a store buffer: a plain store goes into it and reaches memory some time later, in order
 * (total store order, as on x86-64; weaker machines reorder more, but this is enough to lose wake-ups).  A sequentially
 * consistent store waits until its buffer is empty before the thread goes on (mov + mfence, or xchg); a locked operation
 * (fetch_or, fetch_add, exchange) does so before it works on memory.  No thread here loads a word while a store of
 * its own to that word is in its buffer, so store-to-load forwarding does not arise.
 *
 * The wait has no time-out here: the tick would hide what is looked for.  Lost is a state in which the intake thread
 * waits, no post has come since S5, and a front has finished ringing for a record that has not been read (the monitor's
 * assertion); and any deadlock is an error as well.
 */
#ifndef FRONTS
#define FRONTS 2
#endif
#ifndef RECORDS
#define RECORDS 2
#endif

/* Threads: fronts 0…FRONTS − 1, intake FRONTS.  Addresses in memory: */
#define INTAKE      FRONTS
#define TAIL(f)     (f)
#define READY(f)    (FRONTS + (f))
#define SLEEPING    (2 * FRONTS)
#define WORDS       (2 * FRONTS + 1)

byte memory[WORDS];
byte posts; /* never wraps here */
byte seen;  /* the intake thread's */
chan buffer[FRONTS + 1] = [3] of { byte, byte }; /* address, value */

/* What the monitor needs and no thread may look at. */
byte rung[FRONTS];  /* records whose doorbell_ring has returned */
byte taken[FRONTS]; /* records the intake thread has read */
bool asleep;        /* between the end of S2 and the end of S3 */

#define store(thread, address, value) buffer[thread]!address, value
#define drained(thread)               empty(buffer[thread])

#ifdef RELEASE_ACQUIRE
#define store_ordered(thread, address, value) store(thread, address, value)
#define set_ready(f)                          store(f, READY(f), 1)
#else
#define store_ordered(thread, address, value) store(thread, address, value); drained(thread)
#define set_ready(f)                          atomic { drained(f) -> memory[READY(f)] = 1 }
#endif

proctype flush(byte thread)
{
	byte address, value;
end:
	do
	:: atomic { buffer[thread]?address, value -> memory[address] = value }
	od
}

proctype front(byte f)
{
	byte n, sleeping;

	do
	:: n < RECORDS ->
		n++;
		store_ordered(f, TAIL(f), n);                  /* F1 */
		set_ready(f);                                  /* F2 */
		sleeping = memory[SLEEPING];                   /* F3 */
		if
		:: sleeping -> atomic { drained(f) -> posts++; rung[f] = n }  /* F4 */
		:: else -> rung[f] = n
		fi
	:: else -> break
	od
}

proctype intake()
{
	byte f, word, total;
	bool found;

	do
	:: total < FRONTS * RECORDS ->
		store_ordered(INTAKE, SLEEPING, 1);            /* S1 */
		found = false;
		f = 0;
		do                                             /* S2 */
		:: f < FRONTS ->
			word = memory[READY(f)];
			found = found || word;
			f++
		:: else -> break
		od;
		f = 0;
		do
		:: f < FRONTS ->
			if
			:: found -> skip
			:: else -> atomic {
				word = memory[TAIL(f)];
				found = word > taken[f];
				/* The last look: from here on it waits. */
				asleep = (f == FRONTS - 1 && !found)
			}
			fi;
			f++
		:: else -> break
		od;
		if
		:: found -> skip
		:: else -> atomic { posts != seen && drained(INTAKE) -> asleep = false }  /* S3 */
		fi;
		store_ordered(INTAKE, SLEEPING, 0);            /* S4 */
		seen = posts;                                  /* S5 */
		f = 0;
		do                                             /* the bits, then the lanes */
		:: f < FRONTS ->
			atomic { drained(INTAKE) -> memory[READY(f)] = 0 }
			word = memory[TAIL(f)];
			total = total + word - taken[f];
			taken[f] = word;
			f++
		:: else -> break
		od
	:: else -> break
	od
}

#ifdef MAD
/* A front gone mad clears the ready bits of others, twice. */
proctype mad()
{
	byte f;

	select(f : 0 .. FRONTS - 1);
	memory[READY(f)] = 0;
	select(f : 0 .. FRONTS - 1);
	memory[READY(f)] = 0
}
#endif

proctype monitor()
{
	byte f;

	select(f : 0 .. FRONTS - 1);
end:
	atomic { asleep && posts == seen && rung[f] > taken[f] -> assert(false) }
}

init
{
	byte i;

	atomic {
		do
		:: i < FRONTS -> run front(i); run flush(i); i++
		:: else -> break
		od;
		run intake();
		run flush(INTAKE);
		run monitor();
#ifdef MAD
		run mad()
#endif
	}
}
