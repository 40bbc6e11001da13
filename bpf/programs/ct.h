/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Connection tracking. A pod's programs track each flow of the pod: OUT if the
 * pod began it, IN if the other side did. A gateway tracks the flows that it
 * translates, as OUT.
 *
 * No live connection may be lost to the garbage collection, which condemns an
 * entry by cmpxchg(lifetime, expired -> 0) before it deletes it. So here a
 * lifetime is changed by cmpxchg only, 0 is as good as absent, and entries are
 * created with BPF_NOEXIST. */

#pragma once

#include "shares.h"

#define CT_ATTEMPTS 3
#define CT_MORE 2 /* of ct_make */
#define SECOND 1000000000ULL
#define CT_GRACE 60 /* seconds behind the lifetime in which a reply is one still */

#define CT_BOTH_CLOSING (CT_RX_CLOSING | CT_TX_CLOSING)

/* The key of a flow, whose original direction is that of t; with CT_REVERSE in
 * how, beside the key's flags, t is that of a reply. */
static __always_inline void ct4_key(struct tuple4_key *key, const struct tuple *t, __u32 how)
{
	bool reply = how & CT_REVERSE;

	key->daddr = reply ? t->daddr.words[3] : t->saddr.words[3];
	key->saddr = reply ? t->saddr.words[3] : t->daddr.words[3];
	key->dport = reply ? t->sport : t->dport;
	key->sport = reply ? t->dport : t->sport;
	key->protocol = t->protocol;
	key->flags = how;
}

static __always_inline void ct6_key(struct tuple6_key *key, const struct tuple *t, __u32 how)
{
	bool reply = how & CT_REVERSE;

	__builtin_memcpy(key->daddr, reply ? &t->daddr : &t->saddr, sizeof(key->daddr));
	__builtin_memcpy(key->saddr, reply ? &t->saddr : &t->daddr, sizeof(key->saddr));
	key->dport = reply ? t->sport : t->dport;
	key->sport = reply ? t->dport : t->sport;
	key->protocol = t->protocol;
	key->flags = how;
}

static __always_inline struct ct_entry *ct_lookup(const struct tuple *t, __u32 how)
{
	if (t->family == FAMILY_IPV4) {
		struct tuple4_key key ALIGNED;

		ct4_key(&key, t, how);
		if (t->protocol == IPPROTO_TCP)
			return bpf_map_lookup_elem(&sluice_ct4_tcp, &key);
		return bpf_map_lookup_elem(&sluice_ct4_any, &key);
	} else {
		struct tuple6_key key ALIGNED;

		ct6_key(&key, t, how);
		if (t->protocol == IPPROTO_TCP)
			return bpf_map_lookup_elem(&sluice_ct6_tcp, &key);
		return bpf_map_lookup_elem(&sluice_ct6_any, &key);
	}
}

/* Inserts an entry, unless there is one. */
static __always_inline long ct_insert(const struct tuple *t, __u32 how, const struct ct_entry *e)
{
	if (t->family == FAMILY_IPV4) {
		struct tuple4_key key ALIGNED;

		ct4_key(&key, t, how);
		if (t->protocol == IPPROTO_TCP)
			return bpf_map_update_elem(&sluice_ct4_tcp, &key, e, BPF_NOEXIST);
		return bpf_map_update_elem(&sluice_ct4_any, &key, e, BPF_NOEXIST);
	} else {
		struct tuple6_key key ALIGNED;

		ct6_key(&key, t, how);
		if (t->protocol == IPPROTO_TCP)
			return bpf_map_update_elem(&sluice_ct6_tcp, &key, e, BPF_NOEXIST);
		return bpf_map_update_elem(&sluice_ct6_any, &key, e, BPF_NOEXIST);
	}
}

static __always_inline __u32 ct_lifetime_of(const struct ct_entry *e)
{
	return *(volatile const __u32 *)&e->lifetime;
}

/* Returns the live entry of a flow. */
static __always_inline struct ct_entry *ct_find(const struct packet *p, __u32 how)
{
	struct ct_entry *e = ct_lookup(&p->flow, how);

	return e && ct_lifetime_of(e) * SECOND > p->time ? e : NULL;
}

/* The same for a packet in the flow's original direction: the entry of a
 * connection of before is not that of one which begins with the same ports. */
static __always_inline struct ct_entry *ct_find_original(const struct packet *p, __u32 how)
{
	struct ct_entry *e = ct_find(p, how);

	if (e && opens(p) && (e->flags & CT_SEEN_NON_SYN || (e->flags & CT_BOTH_CLOSING) == CT_BOTH_CLOSING))
		return NULL;
	return e;
}

/* Returns the entry of the flow to which a packet is a reply, also one that has
 * expired: that its other side is slow to answer does not make the flow its own. */
static __always_inline struct ct_entry *ct_find_replied(const struct packet *p)
{
	struct ct_entry *e = ct_lookup(&p->flow, TUPLE_OUT | CT_REVERSE);

	return e && ct_lifetime_of(e) && !opens(p) ? e : NULL;
}

/* Reports whether an entry expired so long ago that no policy of today need let pass
 * what would be a reply. */
static __always_inline bool ct_long_expired(const struct ct_entry *e, __u64 time)
{
	return (ct_lifetime_of(e) + CT_GRACE) * SECOND <= time;
}

/* How long an entry lives after a packet, in seconds. A reset may be forged, as nothing
 * here checks its sequence number: so it ends a connection only if nothing follows. Hosts
 * that have accepted it send nothing but resets. */
static __always_inline __u32 ct_lifetime(const struct config_value *cfg, const struct packet *p,
					 __u16 flags)
{
	if (p->flow.protocol != IPPROTO_TCP)
		return cfg->lifetime_any;
	if ((flags & CT_BOTH_CLOSING) == CT_BOTH_CLOSING || p->tcp_flags & TCP_RST)
		return cfg->lifetime_closing;
	return flags & CT_SEEN_NON_SYN ? cfg->lifetime_tcp : cfg->lifetime_syn;
}

/* What an entry remembers to have seen in a direction: TCP flags, or of other
 * protocols just that there was a packet. */
static __always_inline __u8 seen_flags(const struct packet *p)
{
	return p->flow.protocol == IPPROTO_TCP ? p->tcp_flags : 1;
}

static __always_inline __u16 ct_flags_of(const struct packet *p, bool tx)
{
	__u16 flags = 0;

	if (p->flow.protocol != IPPROTO_TCP)
		return 0;
	if (!(p->tcp_flags & TCP_SYN))
		flags |= CT_SEEN_NON_SYN;
	if (p->tcp_flags & TCP_FIN)
		flags |= tx ? CT_TX_CLOSING : CT_RX_CLOSING;
	return flags;
}

/* Flags are shared by CPUs; the bits behind them in the same word are constant. */
static __always_inline void ct_set_flags(struct ct_entry *e, __u16 flags)
{
	__sync_fetch_and_or((__u32 *)&e->flags, (__u32)flags);
}

/* Notes a packet of a flow, of a length, in its entry: tx if it goes in the flow's original
 * direction. Returns false if the entry was condemned meanwhile. */
static __always_inline int ct_note(__u32 length, struct ct_entry *e, const struct packet *p, const struct config_value *cfg,
		       bool tx)
{
	__u32 now, lifetime, old;
	__u16 old_flags, flags;
	__u32 *last;
	__u8 *seen;

	if (!e || !p || !cfg)
		return true;
	/* What says nothing about the connection's life does not prolong it. */
	if (p->shape == SHAPE_ICMP_ERROR)
		return true;
	__sync_fetch_and_add(&e->packets, 1);
	__sync_fetch_and_add(&e->bytes, length);

	old_flags = flags = e->flags;
	if (p->shape != SHAPE_LATER_FRAGMENT)
		flags |= ct_flags_of(p, tx);
	seen = tx ? &e->tx_flags_seen : &e->rx_flags_seen;
	if (flags != old_flags)
		ct_set_flags(e, flags);
	if ((*seen | seen_flags(p)) != *seen)
		*seen |= seen_flags(p);
	if ((old_flags & CT_BOTH_CLOSING) == CT_BOTH_CLOSING)
		return true;

	/* Once a second is often enough for the rest. */
	lifetime = ct_lifetime(cfg, p, flags);
	old = ct_lifetime_of(e);
	if (flags == old_flags && !(p->tcp_flags & TCP_RST) &&
	    old * SECOND > p->time + (lifetime - 1) * SECOND)
		return true;
	now = p->time / SECOND;
	last = tx ? &e->last_tx_report : &e->last_rx_report;
	if (now - *last >= cfg->report_interval)
		*last = now;
	lifetime += now;
	for (int i = 0; i < CT_ATTEMPTS; i++) {
		if (!old)
			return false;
		if (old == lifetime || __sync_val_compare_and_swap(&e->lifetime, old, lifetime) == old)
			return true;
		old = ct_lifetime_of(e);
	}
	return old != 0;
}

/* Makes an entry that exists that of a new flow. */
static __always_inline bool ct_renew(struct ct_entry *e, const struct ct_entry *new)
{
	__u32 old = ct_lifetime_of(e);

	/* What a server still sends keeps no entry of a connection that has ended. */
	if (!new->tx_flags_seen && (e->flags & CT_BOTH_CLOSING) == CT_BOTH_CLOSING)
		return false;
	if (!old || __sync_val_compare_and_swap(&e->lifetime, old, new->lifetime) != old)
		return false;
	e->gateway = new->gateway;
	e->packets = new->packets;
	e->bytes = new->bytes;
	e->flags = new->flags;
	e->tx_flags_seen = new->tx_flags_seen;
	e->rx_flags_seen = new->rx_flags_seen;
	e->generation = new->generation;
	e->cookie = new->cookie;
	e->created = new->created;
	return true;
}

/* Creates the entry of a new flow, whose original direction is that of the
 * packet, or of its reverse. One that expired, or was of a flow that ended, is
 * made anew. If the garbage collection is about to delete one, maybe on this very
 * CPU, there is none in the end: the packet goes on its own verdict. Returns whether
 * there is one, and CT_MORE if the map has one more. */
SUBPROGRAM int ct_make(__u32 length, const struct packet *p, const struct decision *d, const struct config_value *cfg,
			 __u32 how)
{
	bool tx = !(how & CT_REVERSE);
	struct ct_entry new = {};
	__u32 now;

	if (!p || !d || !cfg)
		return 0;
	now = p->time / SECOND;
	new.gateway = d->gateway;
	new.packets = 1;
	new.bytes = length;
	new.flags = d->flags | ct_flags_of(p, tx);
	new.generation = d->generation;
	new.cookie = d->cookie;
	new.created = now;
	if (tx) {
		new.tx_flags_seen = seen_flags(p);
		new.last_tx_report = now;
	} else {
		new.rx_flags_seen = seen_flags(p);
		new.last_rx_report = now;
	}
	new.lifetime = now + ct_lifetime(cfg, p, new.flags);
	for (int i = 0; i < CT_ATTEMPTS; i++) {
		long err = ct_insert(&p->flow, how, &new);
		struct ct_entry *old;

		if (err != -EEXIST)
			return err ? 0 : CT_MORE;
		old = ct_lookup(&p->flow, how);
		if (old && ct_renew(old, &new))
			return 1;
	}
	return 0;
}

/* The same, and counts the entry. It is a function side by side with the one that counts,
 * as they would be too deep for the stack one in another. */
static __always_inline int ct_create(__u32 length, const struct packet *p, const struct decision *d,
				     const struct config_value *cfg, __u32 how)
{
	int made = ct_make(length, p, d, cfg, how);

	if (made == CT_MORE)
		connection_created(&p->flow, how, d->flags);
	return made;
}
