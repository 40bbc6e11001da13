/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Shares of pods in what they have together: the room of the maps of connections and
 * translations, and the ports of an egress address towards a destination. A pod that has
 * more than is free gets no more. So one that wants all gets half at most, N of them one
 * (N+1)th each, and as much stays free for pods that have less.
 *
 * A program adds to a count after it has created an entry, and never takes anything away.
 * The garbage collection, which alone removes entries, counts them in each pass (gc.h).
 * So a count is too high until the next pass, if at all, and never too low by more than
 * what processors create at the same moment. */

#pragma once

#include "report.h"

#define CT_REVERSE 0x100 /* beside tuple_flags: the packet goes in the reply direction */
#define ENTRIES_OF_TRANSLATION 2

/* Sets the share that a connection's entry counts in: that of the pod that began it, or
 * else of the pod of this node that it leads to. What this host began is in none. t and
 * how are those of the entry's key (ct4_key), flags the entry's. */
static __always_inline void connection_share(struct share_key *key, const struct tuple *t, __u32 how, __u16 flags)
{
	bool reached = how & TUPLE_IN && !(flags & CT_OF_POD);

	__builtin_memset(key, 0, sizeof(*key));
	key->map = t->family == FAMILY_IPV4 ? LIMITED_CT4_TCP : LIMITED_CT6_TCP;
	key->map += t->protocol != IPPROTO_TCP;
	if (flags & CT_OF_HOST)
		return;
	key->reached = reached;
	key->pod = reached == !(how & CT_REVERSE) ? t->daddr : t->saddr;
}

/* The same of the translations of a pod, or of the host with an egress address. */
static __always_inline void translation_share(struct share_key *key, const struct address *addr,
					      __u8 family)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->map = family == FAMILY_IPV4 ? LIMITED_NAT4 : LIMITED_NAT6;
	key->pod = *addr;
}

/* The key of the ports of a flow that leaves with an egress address; of all pods if none
 * is given. */
static __always_inline void port_share(struct port_key *key, const struct tuple *flow, const struct address *egress,
				       const struct address *pod)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->egress = *egress;
	key->remote = flow->daddr;
	if (pod)
		key->pod = *pod;
	key->port = flow->dport;
	key->protocol = flow->protocol;
}

static __always_inline bool over_share(__u32 used, __u32 all, __u32 room, __u32 percent)
{
	__u64 free = room > all ? room - all : 0;

	return percent && (__u64)used * 100 > free * percent;
}

/* Reports whether a pod has its share of a map. If the map is full and the pod has
 * nothing, it may have something, and the map evicts what was not used for longest. */
SUBPROGRAM int share_used_up(const struct share_key *key, const struct config_value *cfg)
{
	const struct share_value *own, *all;
	struct share_key of_all = {};

	if (!key || !cfg)
		return 0;
	of_all.map = key->map;
	own = bpf_map_lookup_elem(&sluice_shares, key);
	all = bpf_map_lookup_elem(&sluice_shares, &of_all);
	return own && all && all->room && over_share(own->used, all->used, all->room, cfg->connection_share);
}

/* The same for the connection that a packet begins. */
SUBPROGRAM int connections_used_up(const struct packet *p, const struct config_value *cfg, __u32 how, __u32 flags)
{
	struct share_key key;

	if (!p || !cfg || flags & CT_OF_HOST)
		return 0;
	connection_share(&key, &p->flow, how, flags);
	return share_used_up(&key, cfg);
}

/* Counts entries for all, and for a pod unless it is none. */
SUBPROGRAM int share_add(const struct share_key *key, __u32 n)
{
	struct share_value first = {}, *v;
	struct share_key of_all = {};

	if (!key)
		return 0;
	of_all.map = key->map;
	v = bpf_map_lookup_elem(&sluice_shares, &of_all);
	if (v)
		__sync_fetch_and_add(&v->used, n);
	if (no_address(&key->pod))
		return 0;
	v = bpf_map_lookup_elem(&sluice_shares, key);
	first.used = n;
	if (!v && bpf_map_update_elem(&sluice_shares, key, &first, BPF_NOEXIST) == -EEXIST)
		v = bpf_map_lookup_elem(&sluice_shares, key);
	if (v)
		__sync_fetch_and_add(&v->used, n);
	return 0;
}

/* Counts a port; of all pods' ports, of which there are so many. */
SUBPROGRAM int port_add(const struct port_key *key, __u32 room)
{
	struct share_value first = {}, *v;

	if (!key)
		return 0;
	v = bpf_map_lookup_elem(&sluice_ports, key);
	first.used = 1;
	first.room = room;
	if (!v && bpf_map_update_elem(&sluice_ports, key, &first, BPF_NOEXIST) == -EEXIST)
		v = bpf_map_lookup_elem(&sluice_ports, key);
	if (!v)
		return 0;
	__sync_fetch_and_add(&v->used, 1);
	if (v->room != room)
		v->room = room;
	return 0;
}

/* Counts a connection whose entry was created. */
SUBPROGRAM int connection_created(const struct tuple *t, __u32 how, __u32 flags)
{
	struct share_key key;

	if (!t)
		return 0;
	connection_share(&key, t, how, flags);
	return share_add(&key, 1);
}
