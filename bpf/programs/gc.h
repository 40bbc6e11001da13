/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Garbage collection of connections and translations: what a pass is to do and has
 * done, what it reports, and for how long the kernel is busy at a stretch. */

#pragma once

#include "translation.h"

/* One run of the kernel ends when it has looked at that many entries, reported that
 * many removals, or worked for that long. The next begins where it ended. */
#define GC_RUN_ENTRIES 1024
#define GC_RUN_EVENTS 512
#define GC_RUN_TIME 400000 /* nanoseconds */
#define GC_CLOCK_EVERY 32  /* entries between looks at the clock */

/* What a pass does. */
enum gc_flags {
	GC_EXPIRED = 1 << 0,   /* remove connections that have expired, with their translations */
	GC_ORPHANS = 1 << 1,   /* remove translations without connection */
	GC_RELEASED = 1 << 2,  /* remove what has an address of sluice_released */
	GC_ALL = 1 << 3,       /* remove everything */
	GC_REMOVALS = 1 << 4,  /* tell of removals */
	GC_SURVIVORS = 1 << 5, /* tell of what stays */
};

struct gc_control {
	__u32 flags;
	__u32 now;	   /* seconds of CLOCK_MONOTONIC; 0: the present */
	__u32 reply_grace; /* seconds that UDP connections of pods stay after they have expired */
};

/* Why an entry was removed. */
enum gc_reason {
	GC_STAYS = 0,
	GC_REASON_EXPIRED = 1,
	GC_REASON_ORPHAN = 2,
	GC_REASON_RELEASED = 3,
	GC_REASON_FLUSHED = 4,
	GC_REASON_CONDEMNED = 5, /* found condemned by a run that did not remove it */
};

struct gc_counts {
	__u64 scanned;
	__u64 expired;
	__u64 translations; /* removed with their connections */
	__u64 orphans;
	__u64 released;
	__u64 flushed;
	__u64 condemned;
	__u64 kept;	/* expired, but stays for replies, or was just used */
	__u64 revived;	/* used just when it was to be removed: stays */
	__u64 deferred; /* could not be reported: stays for the next pass */
	__u64 failed;	/* could not be deleted */
	__u64 longest_run; /* nanoseconds */
	__u32 next_expiry; /* earliest of the connections that stay, 0: none */
};

enum gc_kind { GC_CONNECTION = 1, GC_TRANSLATION = 2 };

struct gc_event {
	__u8 kind;
	__u8 reason;
	__u8 family;
	__u8 pad[5];
	union {
		struct tuple4_key key4;
		struct tuple6_key key6;
		__u8 key[40];
	};
	union {
		struct ct_entry connection;
		struct nat4_entry nat4;
		struct nat6_entry nat6;
		__u8 value[72];
	};
};

/* What a pass does to the counts of pods' shares. */
enum gc_step {
	GC_NO_COUNT = 0,
	GC_BEGIN_COUNT = 1, /* through the counts: what was counted so far */
	GC_COUNT = 2,	    /* through the entries: count them */
	GC_END_COUNT = 3,   /* through the counts: put what was found in the place of what there was then */
};

struct gc_run {
	__u64 begun; /* 0: the next entry begins one */
	__u32 now;   /* seconds */
	__u32 step;  /* enum gc_step */
	__u32 entries;
	__u32 events;
};

struct gc_control control;
struct gc_counts counts;
struct gc_run run;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct released_key);
	__type(value, struct released_value);
} sluice_released SEC(".maps");

/* Translations that were found condemned. The program that condemned one is about to
 * delete it, and another program may then create one in its place. So a pass leaves them
 * alone, unless they stay condemned: an eviction at that moment can leave one behind. */
struct gc_suspect {
	__u64 created; /* as that of the translation */
	__u64 since;   /* nanoseconds of CLOCK_MONOTONIC */
};

struct gc_suspect_key {
	struct tuple tuple;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct gc_suspect_key);
	__type(value, struct gc_suspect);
} sluice_suspects SEC(".maps");

/* Room for the events of a run, of which one entry may have three: the agent reads
 * them after each. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} sluice_gc SEC(".maps");

/* Begins a run, unless there is one. */
static __always_inline void run_begin(void)
{
	if (run.begun)
		return;
	run.begun = bpf_ktime_get_ns();
	run.now = control.now ?: run.begun / SECOND;
	run.entries = run.events = 0;
}

static __always_inline void run_end(void)
{
	__u64 time = bpf_ktime_get_ns() - run.begun;

	if (run.begun && time > counts.longest_run)
		counts.longest_run = time;
	run.begun = 0;
}

/* Reports whether the run has been long enough. */
static __always_inline bool run_over(void)
{
	__u32 entries = ++run.entries;

	return entries >= GC_RUN_ENTRIES || run.events >= GC_RUN_EVENTS ||
	       (entries % GC_CLOCK_EVERY == 0 && bpf_ktime_get_ns() - run.begun > GC_RUN_TIME);
}

/* Reserves an event. False if there is no room for one that is wanted. */
static __always_inline bool event_begin(struct gc_event **e, __u32 wanted)
{
	*e = NULL;
	if (!(control.flags & wanted))
		return true;
	*e = bpf_ringbuf_reserve(&sluice_gc, sizeof(**e), 0);
	return *e;
}

static __always_inline void event_end(struct gc_event *e, bool happened)
{
	if (!e)
		return;
	run.events++; /* what is discarded takes room too */
	if (happened)
		bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	else
		bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void event_key(struct gc_event *e, const struct tuple *t, bool connection, __u32 flags)
{
	e->family = t->family;
	__builtin_memset(e->key, 0, sizeof(e->key));
	if (t->family == FAMILY_IPV4) {
		if (connection)
			ct4_key(&e->key4, t, flags);
		else
			nat4_key(&e->key4, t, flags);
	} else {
		if (connection)
			ct6_key(&e->key6, t, flags);
		else
			nat6_key(&e->key6, t, flags);
	}
}

static __always_inline void event_translation(struct gc_event *e, const struct tuple *t, __u32 flags,
					      const struct translation *to, __u32 reason)
{
	e->kind = GC_TRANSLATION;
	e->reason = reason;
	event_key(e, t, false, flags);
	__builtin_memset(e->value, 0, sizeof(e->value));
	e->nat6.created = to->created;
	e->nat6.needs_ct = to->needs_ct;
	e->nat6.used = to->used;
	e->nat6.tunnel = to->tunnel;
	if (t->family == FAMILY_IPV4) {
		e->nat4.addr = to->addr.words[3];
		e->nat4.port = to->port;
	} else {
		e->nat6.addr = to->addr;
		e->nat6.port = to->port;
	}
}
