/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Garbage collection of connections and translations: what becomes of one entry. */

#pragma once

#include "recount.h"

static __always_inline bool is_released(const struct address *a)
{
	return bpf_map_lookup_elem(&sluice_released, a) != NULL;
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
	case GC_REASON_RELEASED:
		counts.released++;
		break;
	case GC_REASON_FLUSHED:
		counts.flushed++;
		break;
	case GC_REASON_CONDEMNED:
		counts.condemned++;
		break;
	}
}

/* Why a translation ends, to the ledger. */
static __always_inline __u32 ledger_reason(__u32 reason)
{
	return reason - GC_REASON_EXPIRED + LEDGER_EXPIRED; /* they are in the same order */
}

/* Removes and reports one translation, if it was not used after a time in seconds.
 * Returns whether it did. */
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
	if (removed > 0 && flags & TUPLE_IN)
		ledger_end(t, to, ledger_reason(reason));
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
	if (control.flags & GC_RELEASED && (is_released(&flow->saddr) || is_released(&flow->daddr)))
		return GC_REASON_RELEASED;
	if (!(control.flags & GC_EXPIRED) || lifetime >= run.now)
		return GC_STAYS;
	if (flow->protocol == IPPROTO_UDP && flags == TUPLE_OUT && (__u64)lifetime + control.reply_grace >= run.now) {
		counts.kept++;
		return GC_STAYS;
	}
	return GC_REASON_EXPIRED;
}

static __always_inline void event_connection(struct gc_event *event, const struct tuple *flow, __u8 flags,
					     const struct ct_entry *e, __u32 lifetime, __u32 reason)
{
	event->kind = GC_CONNECTION;
	event->reason = reason;
	event_key(event, flow, true, flags);
	event->connection = *e;
	event->connection.lifetime = lifetime;
}

static __always_inline void connection_stays(const struct tuple *flow, __u8 flags, const struct ct_entry *e, __u32 lifetime)
{
	struct gc_event *event;

	if (!counts.next_expiry || lifetime < counts.next_expiry)
		counts.next_expiry = lifetime;
	if (!event_begin(&event, GC_SURVIVORS)) {
		counts.deferred++;
		return;
	}
	if (event)
		event_connection(event, flow, flags, e, lifetime, GC_STAYS);
	event_end(event, true);
}

/* Looks at an entry of a map of connections. */
static __always_inline void collect_connection(void *map, const void *in_map, struct ct_entry *e, bool ipv6)
{
	__u32 lifetime = ct_lifetime_of(e), reason;
	struct ct_entry *there;
	struct gc_event *event;
	union any_key key ALIGNED;
	__u16 entry_flags = e->flags;
	struct tuple flow;
	__u8 flags;

	counts.scanned++;
	if (lifetime >= run.now && !(control.flags & (GC_ALL | GC_RELEASED | GC_SURVIVORS)) &&
	    run.step != GC_COUNT) {
		if (!counts.next_expiry || lifetime < counts.next_expiry)
			counts.next_expiry = lifetime;
		return;
	}
	copy_key(&key, in_map, ipv6);
	flow_of(&flow, &key, ipv6);
	flags = ipv6 ? key.v6.flags : key.v4.flags;
	recount_connection(&flow, flags, entry_flags, 1);
	reason = judge_connection(&flow, flags, lifetime);
	if (!reason) {
		connection_stays(&flow, flags, e, lifetime);
		return;
	}
	if (!event_begin(&event, GC_REMOVALS)) {
		counts.deferred++;
		return;
	}
	if (lifetime && __sync_val_compare_and_swap(&e->lifetime, lifetime, 0) != lifetime) {
		event_end(event, false);
		counts.revived++;
		return;
	}
	if (event)
		event_connection(event, &flow, flags, e, lifetime, reason);
	/* While the connection is condemned no program can begin another with its key,
	 * whose translations these might be. */
	if (flags == TUPLE_OUT)
		gc_translations(&flow, reason);
	/* Unless the kernel has evicted the entry since: then there may be another. */
	there = bpf_map_lookup_elem(map, &key);
	if (!there || ct_lifetime_of(there)) {
		__sync_val_compare_and_swap(&e->lifetime, 0, lifetime); /* whose it may be now */
		event_end(event, false);
		return;
	}
	if (bpf_map_delete_elem(map, &key)) {
		__sync_val_compare_and_swap(&e->lifetime, 0, lifetime);
		event_end(event, false);
		counts.failed++;
		return;
	}
	event_end(event, true);
	count_reason(reason);
	recount_connection(&flow, flags, entry_flags, -1);
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
	if (control.flags & GC_RELEASED &&
	    (is_released(&t->saddr) || is_released(&t->daddr) || is_released(&to->addr)))
		return GC_REASON_RELEASED;
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
	struct gc_event *event;
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
	recount_translation(&t, flags, &to.addr, 1);

	if (!to.used) {
		if (!(control.flags & GC_ALL) && !abandoned(&t, flags, to.created)) {
			counts.kept++;
			return;
		}
		if (!event_begin(&event, GC_REMOVALS)) {
			counts.deferred++;
			return;
		}
		err = bpf_map_delete_elem(map, &key);
		if (!err && flags & TUPLE_IN)
			ledger_end(&t, &to, LEDGER_CONDEMNED);
		if (event && !err)
			event_translation(event, &t, flags, &to, GC_REASON_CONDEMNED);
		event_end(event, !err);
		counts.failed += err != 0;
		counts.condemned += !err;
		if (!err)
			recount_translation(&t, flags, &to.addr, -1);
		return;
	}
	reason = judge_translation(&t, flags, &to);
	if (reason) {
		if (gc_translation(&t, flags, &to, reason == GC_REASON_ORPHAN ? to.used : NAT_NOW, reason)) {
			count_reason(reason);
			recount_translation(&t, flags, &to.addr, -1);
		}
		return;
	}
	if (!event_begin(&event, GC_SURVIVORS)) {
		counts.deferred++;
		return;
	}
	if (event)
		event_translation(event, &t, flags, &to, GC_STAYS);
	event_end(event, true);
}
