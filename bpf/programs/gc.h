/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Garbage collection of connections and translations: what becomes of one entry,
 * and for how long the kernel is busy at a stretch. */

#pragma once

#include "translation.h"

/* One run of the kernel ends when it has looked at that many entries, told of that
 * many removals, or worked for that long. The next begins where it ended. */
#define GC_RUN_ENTRIES 1024
#define GC_RUN_EVENTS 512
#define GC_RUN_TIME 400000 /* nanoseconds */
#define GC_CLOCK_EVERY 32  /* entries between looks at the clock */

/* What a pass does. */
enum gc_flags {
	GC_EXPIRED = 1 << 0,   /* remove connections that have expired, with their translations */
	GC_ORPHANS = 1 << 1,   /* remove translations without connection */
	GC_SCRUB = 1 << 2,     /* remove what has an address of sluice_scrub */
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
	GC_REASON_SCRUBBED = 3,
	GC_REASON_FLUSHED = 4,
	GC_REASON_CONDEMNED = 5, /* found as somebody had left it who was to remove it */
};

struct gc_counts {
	__u64 scanned;
	__u64 expired;
	__u64 translations; /* removed with their connections */
	__u64 orphans;
	__u64 scrubbed;
	__u64 flushed;
	__u64 condemned;
	__u64 kept;	/* expired, but stays for replies, or was just used */
	__u64 revived;	/* used just when it was to be removed: stays */
	__u64 deferred; /* could not be told of: stays for the next pass */
	__u64 failed;	/* could not be deleted */
	__u32 next_expiry; /* earliest of the connections that stay, 0: none */
	__u32 stopped;	   /* the pass by for_each did not come to the end */
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

struct gc_run {
	__u64 begun; /* 0: the next entry begins one */
	__u32 now;   /* seconds */
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
	__type(key, struct scrub_key);
	__type(value, struct scrub_value);
} sluice_scrub SEC(".maps");

/* Translations that were found condemned. Who did that is about to delete them, and
 * somebody then makes others in their places: so they are left alone, unless they
 * stay so, as what was removed by system calls may. */
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

static __always_inline bool is_scrubbed(const struct address *a)
{
	return bpf_map_lookup_elem(&sluice_scrub, a) != NULL;
}

static __always_inline void count_reason(__u32 reason)
{
	switch (reason) {
	case GC_REASON_EXPIRED:
		counts.expired++;
		break;
	case GC_REASON_ORPHAN:
		counts.orphans++;
		break;
	case GC_REASON_SCRUBBED:
		counts.scrubbed++;
		break;
	case GC_REASON_FLUSHED:
		counts.flushed++;
		break;
	case GC_REASON_CONDEMNED:
		counts.condemned++;
		break;
	}
}

/* Removes one translation, if it was not used after a time in seconds, and tells of
 * it. Returns whether it did. */
SUBPROGRAM int gc_translation(const struct tuple *t, __u32 flags, const struct translation *to, __u32 unused_since,
			      __u32 reason)
{
	struct gc_event *e;
	int removed;

	if (!t || !to)
		return 0;
	if (!event_begin(&e, GC_REMOVALS)) {
		counts.deferred++;
		return 0;
	}
	removed = nat_remove(t, flags, unused_since);
	if (e && removed > 0)
		event_translation(e, t, flags, to, reason);
	event_end(e, removed > 0);
	counts.failed += removed < 0;
	counts.revived += !removed;
	return removed > 0;
}

/* Removes the translations of a connection that is condemned. One that was just
 * used is left to be found without connection by the next pass. */
SUBPROGRAM int gc_translations(const struct tuple *flow, __u32 reason)
{
	struct translation to = {}, owner = {};
	__u32 unused_since = NAT_NOW;
	struct tuple replies;

	if (!flow || !nat_find(flow, TUPLE_OUT, &to, 0))
		return 0;
	if (reason == GC_REASON_EXPIRED)
		unused_since = run.now - NAT_GRACE - 1;
	if (to.used > unused_since) {
		counts.kept++;
		return 0;
	}
	replies_to(&replies, flow, &to.addr, to.port);
	if (!gc_translation(flow, TUPLE_OUT, &to, unused_since, reason))
		return 0;
	counts.translations++;
	if (!nat_find(&replies, TUPLE_IN, &owner, 0) || !is_owner(&owner, flow))
		return 0;
	if (owner.used > unused_since)
		counts.kept++;
	else
		counts.translations += gc_translation(&replies, TUPLE_IN, &owner, unused_since, reason);
	return 0;
}

/* A key of either family; of IPv4 only the beginning. */
union any_key {
	struct tuple4_key v4;
	struct tuple6_key v6;
};

/* Copies a key of a map, which is aligned there, as helpers take none that may
 * belong to another entry a moment later. */
static __always_inline void copy_key(union any_key *to, const void *key, bool ipv6)
{
	const void *aligned = __builtin_assume_aligned(key, 8);

	if (ipv6)
		__builtin_memcpy(&to->v6, aligned, sizeof(to->v6));
	else
		__builtin_memcpy(&to->v4, aligned, sizeof(to->v4));
}

/* The tuple of a key of translations. */
static __always_inline void tuple_of(struct tuple *t, const union any_key *key, bool ipv6)
{
	if (ipv6) {
		__builtin_memcpy(&t->saddr, key->v6.saddr, 16);
		__builtin_memcpy(&t->daddr, key->v6.daddr, 16);
	} else {
		t->saddr = mapped(key->v4.saddr);
		t->daddr = mapped(key->v4.daddr);
	}
	t->sport = ipv6 ? key->v6.sport : key->v4.sport;
	t->dport = ipv6 ? key->v6.dport : key->v4.dport;
	t->protocol = ipv6 ? key->v6.protocol : key->v4.protocol;
	t->family = ipv6 ? FAMILY_IPV6 : FAMILY_IPV4;
	t->pad = 0;
}

/* The flow of a key of connections, in its original direction. */
static __always_inline void flow_of(struct tuple *flow, const union any_key *key, bool ipv6)
{
	struct address replier;

	tuple_of(flow, key, ipv6);
	replier = flow->saddr;
	flow->saddr = flow->daddr;
	flow->daddr = replier;
}

static __always_inline __u32 judge_connection(const struct tuple *flow, __u8 flags, __u32 lifetime)
{
	if (!lifetime)
		return GC_REASON_CONDEMNED;
	if (control.flags & GC_ALL)
		return GC_REASON_FLUSHED;
	if (control.flags & GC_SCRUB && (is_scrubbed(&flow->saddr) || is_scrubbed(&flow->daddr)))
		return GC_REASON_SCRUBBED;
	if (!(control.flags & GC_EXPIRED) || lifetime >= run.now)
		return GC_STAYS;
	if (flow->protocol == IPPROTO_UDP && flags == TUPLE_OUT && lifetime + control.reply_grace >= run.now) {
		counts.kept++;
		return GC_STAYS;
	}
	return GC_REASON_EXPIRED;
}

static __always_inline void event_connection(struct gc_event *told, const struct tuple *flow, __u8 flags,
					     const struct ct_entry *e, __u32 lifetime, __u32 reason)
{
	told->kind = GC_CONNECTION;
	told->reason = reason;
	event_key(told, flow, true, flags);
	told->connection = *e;
	told->connection.lifetime = lifetime;
}

static __always_inline void connection_stays(const struct tuple *flow, __u8 flags, const struct ct_entry *e, __u32 lifetime)
{
	struct gc_event *told;

	if (!counts.next_expiry || lifetime < counts.next_expiry)
		counts.next_expiry = lifetime;
	if (!event_begin(&told, GC_SURVIVORS)) {
		counts.deferred++;
		return;
	}
	if (told)
		event_connection(told, flow, flags, e, lifetime, GC_STAYS);
	event_end(told, true);
}

/* Looks at an entry of a map of connections. */
static __always_inline void collect_connection(void *map, const void *in_map, struct ct_entry *e, bool ipv6)
{
	__u32 lifetime = ct_lifetime_of(e), reason;
	struct ct_entry *there;
	struct gc_event *told;
	union any_key key ALIGNED;
	struct tuple flow;
	__u8 flags;

	counts.scanned++;
	if (lifetime >= run.now && !(control.flags & (GC_ALL | GC_SCRUB | GC_SURVIVORS))) {
		if (!counts.next_expiry || lifetime < counts.next_expiry)
			counts.next_expiry = lifetime;
		return;
	}
	copy_key(&key, in_map, ipv6);
	flow_of(&flow, &key, ipv6);
	flags = ipv6 ? key.v6.flags : key.v4.flags;
	reason = judge_connection(&flow, flags, lifetime);
	if (!reason) {
		connection_stays(&flow, flags, e, lifetime);
		return;
	}
	if (!event_begin(&told, GC_REMOVALS)) {
		counts.deferred++;
		return;
	}
	if (lifetime && __sync_val_compare_and_swap(&e->lifetime, lifetime, 0) != lifetime) {
		event_end(told, false);
		counts.revived++;
		return;
	}
	if (told)
		event_connection(told, &flow, flags, e, lifetime, reason);
	/* While the connection is condemned nobody can begin another with its key,
	 * whose translations these might be. */
	if (flags == TUPLE_OUT)
		gc_translations(&flow, reason);
	/* Unless the kernel has evicted the entry since: then there may be another. */
	there = bpf_map_lookup_elem(map, &key);
	if (!there || ct_lifetime_of(there)) {
		event_end(told, false);
		return;
	}
	if (bpf_map_delete_elem(map, &key)) {
		__sync_val_compare_and_swap(&e->lifetime, 0, lifetime);
		event_end(told, false);
		counts.failed++;
		return;
	}
	event_end(told, true);
	count_reason(reason);
}

/* Reports whether a translation has a connection, which may have expired: then they
 * go together. */
static __always_inline bool has_connection(const struct tuple *t, __u8 flags, const struct translation *to)
{
	struct tuple flow = *t;
	struct ct_entry *e;

	if (flags & TUPLE_IN) {
		flow.saddr = to->addr;
		flow.sport = to->port;
		flow.daddr = t->saddr;
		flow.dport = t->sport;
	}
	e = ct_lookup(&flow, TUPLE_OUT);
	return e && ct_lifetime_of(e);
}

static __always_inline __u32 judge_translation(const struct tuple *t, __u8 flags, const struct translation *to)
{
	if (control.flags & GC_ALL)
		return GC_REASON_FLUSHED;
	if (control.flags & GC_SCRUB && (is_scrubbed(&t->saddr) || is_scrubbed(&t->daddr) || is_scrubbed(&to->addr)))
		return GC_REASON_SCRUBBED;
	if (!(control.flags & GC_ORPHANS) || !to->needs_ct || has_connection(t, flags, to))
		return GC_STAYS;
	if (to->used + NAT_GRACE < run.now)
		return GC_REASON_ORPHAN;
	counts.kept++;
	return GC_STAYS;
}

/* Reports whether a translation that is condemned has been so for a while. */
SUBPROGRAM int abandoned(const struct tuple *t, __u32 flags, __u64 created)
{
	struct gc_suspect_key key = {};
	struct gc_suspect new = {}, *known;

	if (!t)
		return 0;
	key.tuple = *t;
	key.flags = flags;
	new.created = created;
	new.since = bpf_ktime_get_ns();
	known = bpf_map_lookup_elem(&sluice_suspects, &key);
	if (known && known->created == created)
		return known->since + NAT_GRACE * SECOND < new.since;
	bpf_map_update_elem(&sluice_suspects, &key, &new, BPF_ANY);
	return 0;
}

/* Looks at an entry of a map of translations: a nat6_entry or, in the same place,
 * the beginning of a nat4_entry. */
static __always_inline void collect_translation(void *map, const void *in_map, void *value, bool ipv6)
{
	struct nat4_entry *v4 = value;
	struct nat6_entry *v6 = value;
	struct translation to = {};
	struct gc_event *told;
	union any_key key ALIGNED;
	__u32 reason;
	struct tuple t;
	__u8 flags;
	long err;

	counts.scanned++;
	copy_key(&key, in_map, ipv6);
	tuple_of(&t, &key, ipv6);
	flags = ipv6 ? key.v6.flags : key.v4.flags;
	to.used = used_at(&v4->used);
	to.created = v4->created;
	to.needs_ct = v4->needs_ct;
	to.tunnel = v4->tunnel;
	to.addr = ipv6 ? v6->addr : mapped(v4->addr);
	to.port = ipv6 ? v6->port : v4->port;

	if (!to.used) {
		if (!(control.flags & GC_ALL) && !abandoned(&t, flags, to.created))
			return;
		if (!event_begin(&told, GC_REMOVALS)) {
			counts.deferred++;
			return;
		}
		err = bpf_map_delete_elem(map, &key);
		if (told && !err)
			event_translation(told, &t, flags, &to, GC_REASON_CONDEMNED);
		event_end(told, !err);
		counts.failed += err != 0;
		counts.condemned += !err;
		return;
	}
	reason = judge_translation(&t, flags, &to);
	if (reason) {
		if (gc_translation(&t, flags, &to, reason == GC_REASON_ORPHAN ? to.used : NAT_NOW, reason))
			count_reason(reason);
		return;
	}
	if (!event_begin(&told, GC_SURVIVORS)) {
		counts.deferred++;
		return;
	}
	if (told)
		event_translation(told, &t, flags, &to, GC_STAYS);
	event_end(told, true);
}
