/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Records of translations. A translated connection has two: OUT, from its tuple to
 * the egress address and port, and IN, from the tuple of its replies back to the
 * pod. To insert IN is to take the port.
 *
 * The programs that use a record say so in it, by cmpxchg(used, before -> now). To remove
 * a record, a program condemns it first, by cmpxchg(used, before -> 0). So no record in use
 * is removed, and the deleted record is the condemned one, as no program can insert another
 * in its place before. */

#pragma once

#include "ledger.h"

#define NAT_GRACE 2 /* seconds that a record has, after its last use, for its connection to be tracked */

/* A translation: what a tuple becomes, and the node that the pod is on. */
struct translation {
	struct address addr;
	struct address tunnel;
	__u64 created; /* nanoseconds of CLOCK_MONOTONIC */
	__u32 needs_ct;
	__u32 used; /* seconds */
	__be16 port;
	__u16 counter; /* of its traffic */
	__u8 pad[4];
};

static __always_inline void nat4_key(struct tuple4_key *key, const struct tuple *t, __u8 flags)
{
	key->daddr = t->daddr.words[3];
	key->saddr = t->saddr.words[3];
	key->dport = t->dport;
	key->sport = t->sport;
	key->protocol = t->protocol;
	key->flags = flags;
}

static __always_inline void nat6_key(struct tuple6_key *key, const struct tuple *t, __u8 flags)
{
	__builtin_memcpy(key->daddr, &t->daddr, sizeof(key->daddr));
	__builtin_memcpy(key->saddr, &t->saddr, sizeof(key->saddr));
	key->dport = t->dport;
	key->sport = t->sport;
	key->protocol = t->protocol;
	key->flags = flags;
}

static __always_inline struct nat4_entry *nat4_lookup(const struct tuple *t, __u8 flags)
{
	struct tuple4_key key ALIGNED;

	nat4_key(&key, t, flags);
	return bpf_map_lookup_elem(&sluice_nat4, &key);
}

static __always_inline struct nat6_entry *nat6_lookup(const struct tuple *t, __u8 flags)
{
	struct tuple6_key key ALIGNED;

	nat6_key(&key, t, flags);
	return bpf_map_lookup_elem(&sluice_nat6, &key);
}

static __always_inline __u32 used_at(const __u32 *used) { return *(volatile const __u32 *)used; }

/* Reports whether a record may be used, and notes that it is, at a time in
 * nanoseconds unless that is 0; once a second is often enough. */
static __always_inline bool nat_use(__u32 *used, __u64 time)
{
	__u32 before = used_at(used), now = time / SECOND;

	if (now <= before || !before)
		return before;
	/* Another CPU may have noted its own use, which is as good. */
	return __sync_val_compare_and_swap(used, before, now);
}

/* Finds the translation of a tuple; 0 if there is none. If time is not 0, it is used
 * then; found->used is when it was before. */
SUBPROGRAM int nat_find(const struct tuple *t, __u32 flags, struct translation *found, __u64 time)
{
	if (!t || !found)
		return 0;
	if (t->family == FAMILY_IPV4) {
		struct nat4_entry *e = nat4_lookup(t, flags);

		if (!e)
			return 0;
		found->addr = mapped(e->addr);
		found->port = e->port;
		found->tunnel = e->tunnel;
		found->created = e->created;
		found->needs_ct = e->needs_ct;
		found->used = e->used;
		found->counter = e->counter;
		return nat_use(&e->used, time);
	} else {
		struct nat6_entry *e = nat6_lookup(t, flags);

		if (!e)
			return 0;
		found->addr = e->addr;
		found->port = e->port;
		found->tunnel = e->tunnel;
		found->created = e->created;
		found->needs_ct = e->needs_ct;
		found->used = e->used;
		found->counter = e->counter;
		return nat_use(&e->used, time);
	}
}

/* Reports whether a flow is translated already. */
SUBPROGRAM int nat_known(const struct tuple *flow)
{
	if (!flow)
		return 0;
	if (flow->family == FAMILY_IPV4) {
		struct nat4_entry *e = nat4_lookup(flow, TUPLE_OUT);

		return e && used_at(&e->used);
	} else {
		struct nat6_entry *e = nat6_lookup(flow, TUPLE_OUT);

		return e && used_at(&e->used);
	}
}

/* Records what a tuple becomes: BPF_NOEXIST unless there is a record, BPF_EXIST only if. The
 * second argument names the counter too: see NAT_COUNTER. */
SUBPROGRAM int nat_record(const struct tuple *t, __u32 flags_and_mode, const struct address *addr, __u32 port,
			  const struct address *tunnel)
{
	/* One place on the stack for both families: they begin with the same fields. */
	union {
		struct nat4_entry v4;
		struct nat6_entry v6;
	} e = {};
	union {
		struct tuple4_key v4;
		struct tuple6_key v6;
	} key ALIGNED;
	long err;

	if (!t || !addr || !tunnel)
		return -EINVAL;
	e.v6.created = bpf_ktime_get_ns();
	e.v6.needs_ct = 1;
	e.v6.used = e.v6.created / SECOND;
	e.v6.tunnel = *tunnel;
	if (t->family == FAMILY_IPV4) {
		e.v4.addr = addr->words[3];
		e.v4.port = port;
		e.v4.counter = flags_and_mode >> 16;
		nat4_key(&key.v4, t, flags_and_mode);
		err = bpf_map_update_elem(&sluice_nat4, &key, &e, flags_and_mode >> 8 & 0xff);
	} else {
		e.v6.addr = *addr;
		e.v6.port = port;
		e.v6.counter = flags_and_mode >> 16;
		nat6_key(&key.v6, t, flags_and_mode);
		err = bpf_map_update_elem(&sluice_nat6, &key, &e, flags_and_mode >> 8 & 0xff);
	}
	if (ledger_on && !err && flags_and_mode & TUPLE_IN)
		ledger_begin(t, addr, port, e.v6.created);
	return err;
}

#define NAT_NEW (BPF_NOEXIST << 8)
#define NAT_KNOWN (BPF_EXIST << 8)
#define NAT_COUNTER(counter) ((__u32)(counter) << 16)

/* Removes a record, unless it was used after a time in seconds, or another program is
 * removing it. Returns whether it did, or a negative error, with the record as before. */
SUBPROGRAM int nat_remove(const struct tuple *t, __u32 flags, __u32 unused_since)
{
	union {
		struct tuple4_key v4;
		struct tuple6_key v6;
	} key ALIGNED;
	__u32 *lease = NULL, used;
	long err;

	if (!t)
		return 0;
	if (t->family == FAMILY_IPV4) {
		struct nat4_entry *e;

		nat4_key(&key.v4, t, flags);
		e = bpf_map_lookup_elem(&sluice_nat4, &key);
		lease = e ? &e->used : NULL;
	} else {
		struct nat6_entry *e;

		nat6_key(&key.v6, t, flags);
		e = bpf_map_lookup_elem(&sluice_nat6, &key);
		lease = e ? &e->used : NULL;
	}
	if (!lease)
		return 0;
	used = used_at(lease);
	if (!used || used > unused_since || __sync_val_compare_and_swap(lease, used, 0) != used)
		return 0;
	err = t->family == FAMILY_IPV4 ? bpf_map_delete_elem(&sluice_nat4, &key) : bpf_map_delete_elem(&sluice_nat6, &key);
	if (!err)
		return 1;
	__sync_val_compare_and_swap(lease, 0, used);
	return err;
}

#define NAT_NOW 0xffffffffU /* unused_since: remove it whenever it was used */

/* Makes t the tuple of the replies to a flow that leaves with an address and port. */
static __always_inline void replies_to(struct tuple *t, const struct tuple *flow, const struct address *addr, __be16 port)
{
	t->saddr = flow->daddr;
	t->daddr = *addr;
	t->sport = flow->dport;
	t->dport = port;
	t->protocol = flow->protocol;
	t->family = flow->family;
	t->pad = 0;
}

/* Reports whether what an address and port stand for is the flow. */
static __always_inline bool is_owner(const struct translation *to, const struct tuple *flow)
{
	return to->port == flow->sport && same_address(&to->addr, &flow->saddr);
}

/* Tells the ledger that what was removed, a record for replies, was the end of a translation. */
SUBPROGRAM int ledger_end(const struct tuple *replies, const struct translation *to, __u32 why)
{
	struct ledger_record *r;

	if (!ledger_on || !replies || !to)
		return 0;
	r = ledger_reserve(replies, &to->addr, to->port, why);
	if (!r)
		return 0;
	r->began = to->created;
	r->used = to->used;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Removes both records of a flow. */
SUBPROGRAM int nat_forget(const struct tuple *flow, const struct translation *to)
{
	struct translation owner = {};
	struct tuple replies;

	if (!flow || !to)
		return -EINVAL;
	replies_to(&replies, flow, &to->addr, to->port);
	if (nat_find(&replies, TUPLE_IN, &owner, 0) && is_owner(&owner, flow) &&
	    nat_remove(&replies, TUPLE_IN, NAT_NOW) > 0)
		ledger_end(&replies, &owner, LEDGER_RENEWED);
	return nat_remove(flow, TUPLE_OUT, NAT_NOW);
}
