/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Where the traffic of pods leaves the cluster, as the tables have it. */

#pragma once

#include "ct.h"

static __always_inline const struct config_value *config(void)
{
	__u32 index = 0;
	const struct config_value *cfg = bpf_map_lookup_elem(&sluice_config, &index);

	/* The entry of an array is always there; one that was written has lifetimes. */
	return cfg && cfg->lifetime_tcp ? cfg : NULL;
}

/* Reads which slot to look into, and the generation. A packet does so before its first lookup,
 * and finds all that it asks for in that slot: the agent that starts fills the other one. */
static __always_inline void look_at_state(struct decision *d)
{
	__u32 index = 0;
	const volatile __u64 *state = bpf_map_lookup_elem(&sluice_state, &index);
	__u64 now = state ? *state : 0; /* a struct state_value */

	d->slot = now;
	d->generation = now >> 32;
}

/* Returns the entry of a pod, of this node or another one. */
static __always_inline const struct pod_value *any_pod(const struct address *addr, __u32 slot)
{
	return in_slot(sluice_pods, slot, addr);
}

/* Returns the entry of a pod of this node. */
static __always_inline const struct pod_value *local_pod(const struct address *addr, __u32 slot)
{
	const struct pod_value *pod = any_pod(addr, slot);

	return pod && pod->flags & POD_LOCAL ? pod : NULL;
}

/* Says which pod of this node the packet is judged for, or that it is for none. A connection
 * that is judged for no pod has a generation that is never in force: a pod that gets the
 * address later cannot continue it. The same holds for a connection of a pod of which nothing
 * is known, and those of a pod that had the address before are not its own. */
static __always_inline void judge_for(struct decision *d, const struct pod_value *pod)
{
	if (!pod || !pod->subject)
		d->generation = 0;
}

static __always_inline void prefix_of(struct prefix_key *key, const struct tuple *t, const struct address *addr)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->family = t->family;
	if (t->family == FAMILY_IPV4) {
		key->prefix_len = 32 + 32;
		__builtin_memcpy(key->addr, &addr->words[3], 4);
	} else {
		key->prefix_len = 32 + 128;
		__builtin_memcpy(key->addr, addr, 16);
	}
}

/* Returns what is known of the destination, a row's flags; 0 if it is outside. */
static __always_inline __u32 known_of_destination(const struct tuple *t, __u32 slot)
{
	const struct ipcache_value *known;
	struct prefix_key key;

	prefix_of(&key, t, &t->daddr);
	known = in_slot(sluice_ipcache, slot, &key);
	return known ? known->flags : 0;
}

SUBPROGRAM __u32 destination_flags(const struct tuple *t, __u32 slot)
{
	return t ? known_of_destination(t, slot) : 0;
}

/* Reports whether an address is of a pod of this node, or may be of one that is not
 * known yet. */
SUBPROGRAM int of_local_pods(const struct tuple *t, const struct address *addr, __u32 slot)
{
	const struct ipcache_value *known;
	struct prefix_key key;

	if (!t || !addr)
		return 0;
	prefix_of(&key, t, addr);
	known = in_slot(sluice_ipcache, slot, &key);
	return known && known->flags & IPCACHE_LOCAL_PODS && !(known->flags & (IPCACHE_HOST | IPCACHE_NODE));
}

/* Reports whether a flow's source lives on a node. */
SUBPROGRAM int lives_on(const struct tuple *t, const struct address *node, __u32 slot)
{
	const struct ipcache_value *known;
	struct prefix_key key;

	if (!t || !node)
		return 0;
	prefix_of(&key, t, &t->saddr);
	known = in_slot(sluice_ipcache, slot, &key);
	return known && same_address(&known->tunnel, node);
}

SUBPROGRAM int covered(const struct tuple *t)
{
	struct prefix_key key;

	if (!t)
		return 0;
	prefix_of(&key, t, &t->daddr);
	return bpf_map_lookup_elem(&sluice_covered, &key) != NULL;
}

/* FNV-1a. Every node spreads the sources of a group in the same way. */
static __always_inline __u32 bucket_of(const struct address *source)
{
	__u32 hash = 2166136261;

	for (int i = 0; i < 16; i++)
		hash = (hash ^ source->bytes[i]) * 16777619;
	return hash % GATEWAY_BUCKETS;
}

/* Looks up the rule of an egress ruleset for the destination, and the row of the
 * source's bucket. Returns NULL if there is none; d->group says how far it got. */
static __always_inline const struct gateway_value *find_gateway(const struct tuple *t, struct decision *d)
{
	struct egress_key key = {.ruleset = d->egress_ruleset, .family = t->family};
	const struct egress_value *rule;
	struct gateway_key bucket;

	if (t->family == FAMILY_IPV4) {
		key.prefix_len = 64 + 32;
		__builtin_memcpy(key.addr, &t->daddr.words[3], 4);
	} else {
		key.prefix_len = 64 + 128;
		__builtin_memcpy(key.addr, &t->daddr, 16);
	}
	rule = in_slot(sluice_egress, d->slot, &key);
	if (!rule || rule->group == GROUP_EXCLUDED)
		return NULL;
	d->group = rule->group;
	d->policy = rule->policy;
	bucket.group = rule->group;
	bucket.bucket = bucket_of(&t->saddr);
	return in_slot(sluice_gateways, d->slot, &bucket);
}

/* Copies the egress address of the flow's family out of a row; none if there is none. */
static __always_inline void set_egress(struct decision *d, const struct tuple *t, const struct gateway_value *row)
{
	if (t->family == FAMILY_IPV6)
		d->egress = row->egress6;
	else if (row->egress4)
		d->egress = mapped(row->egress4);
}

/* Where the host's translation leads what a pod sends to a destination. */
enum leads {
	LEADS_UNKNOWN = 0, /* it was not looked up */
	LEADS_NOWHERE,	   /* nothing is known that translates it */
	LEADS_ON,	   /* to a backend: the packet is judged by that alone */
	LEADS_AWAY,	   /* the same, by a service that is not the pod's to rely on: the packet is
			    * judged by its destination too */
	LEADS_AT_NODE,	   /* to a backend that another node chooses: the packet is judged by its
			    * destination, and by each backend */
};

static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* Returns what translates the destination of a flow, of which the flags are known; NULL if
 * there is nothing. With CT_REVERSE in how, t is that of a reply. */
static __noinline const struct frontend_value *find_frontend(const struct tuple *t, __u32 how, __u32 flags, __u32 slot)
{
	bool reply = how & CT_REVERSE;
	struct frontend_key key ALIGNED = {
		.port = reply ? t->sport : t->dport, .protocol = t->protocol, .family = t->family,
	};
	const struct frontend_value *f;

	/* The port of all nodes comes first: what any tenant says of an address of a node must not
	 * hide it. */
	if (flags & (IPCACHE_HOST | IPCACHE_NODE)) {
		f = in_slot(sluice_services, slot, &key);
		if (f)
			return f;
	}
	key.addr = reply ? t->saddr : t->daddr;
	f = in_slot(sluice_services, slot, &key);
	if (f || !(flags & IPCACHE_HOST))
		return f;
	if (t->family == FAMILY_IPV4)
		key.addr = mapped(bpf_htonl(INADDR_LOOPBACK));
	else
		key.addr = (struct address){.words = {0, 0, 0, bpf_htonl(1)}};
	return in_slot(sluice_services, slot, &key);
}

/* Returns where the destination of a flow leads, an enum leads, and keeps it in d with what
 * is known of the destination; how is as in find_frontend. What is inside the cluster, other than services and nodes,
 * is always judged as itself: a packet may get there without the host's translation. */
SUBPROGRAM __u32 leads(const struct tuple *t, const struct pod_value *pod, struct decision *d, __u32 how)
{
	const struct ipcache_value *known;
	const struct frontend_value *f;
	struct prefix_key prefix;

	if (!t || !pod || !d)
		return LEADS_NOWHERE;
	if (d->leads)
		return d->leads;
	d->leads = LEADS_NOWHERE;
	prefix_of(&prefix, t, how & CT_REVERSE ? &t->saddr : &t->daddr);
	known = in_slot(sluice_ipcache, d->slot, &prefix);
	d->destination = known ? known->flags : 0;
	if (d->destination & IPCACHE_SERVICE)
		return d->leads = LEADS_ON;
	if (!has_ports(t->protocol))
		return LEADS_NOWHERE;
	f = find_frontend(t, how, d->destination, d->slot);
	if (!f)
		return LEADS_NOWHERE;
	if (f->flags & FRONTEND_AT_NODE && !(d->destination & IPCACHE_HOST))
		d->leads = LEADS_AT_NODE;
	else if ((!f->namespace || f->namespace == pod->namespace) &&
		 (!d->destination || d->destination & (IPCACHE_HOST | IPCACHE_NODE)))
		d->leads = LEADS_ON;
	else
		d->leads = LEADS_AWAY;
	return d->leads;
}

/* Reports whether a port of another node may lead out of the cluster, to a destination of
 * the egress ruleset: that node would send it with an address of its own. */
static __noinline int leads_outside(const struct tuple *t, struct decision *d)
{
	const struct frontend_value *f = find_frontend(t, 0, d->destination, d->slot);
	struct tuple backend = *t;
	bool outside = false;

	if (!f)
		return false;
	for (__u32 i = 0; i < FRONTEND_BACKENDS; i++) {
		if (i >= f->count)
			break;
		backend.daddr = f->backends[i].addr;
		outside = !destination_flags(&backend, d->slot);
		if (!outside)
			continue;
		find_gateway(&backend, d);
		if (d->group)
			return true;
	}
	return f->flags & FRONTEND_MORE && outside; /* those outside come first */
}

/* Returns the egress ruleset of a pod, NULL if no egress policy selects it. */
static __always_inline const struct route_value *route_of(const struct pod_value *pod, __u32 slot)
{
	struct subject_key key = {.subject = pod->subject};

	return in_slot(sluice_routes, slot, &key);
}

/* Reports whether an egress policy selects a pod, as far as that is known. */
SUBPROGRAM int routed(const struct pod_value *pod, __u32 slot)
{
	return pod && (!pod->subject || route_of(pod, slot));
}

/* Decides on a flow that a local pod begins: REASON_PASSED, REASON_TO_GATEWAY
 * with d->gateway set, or why it is dropped. */
SUBPROGRAM __u32 decide_egress(const struct tuple *t, const struct pod_value *pod, struct decision *d)
{
	const struct route_value *route = NULL;
	const struct gateway_value *row;
	__u32 led;

	if (!t || !pod || !d)
		return REASON_MALFORMED;
	if (pod->subject) {
		route = route_of(pod, d->slot);
		if (!route)
			return REASON_PASSED;
		d->egress_ruleset = route->egress_ruleset;
	}
	led = leads(t, pod, d, 0);
	if (led != LEADS_NOWHERE)
		d->flags |= CT_SERVICE;
	if (led == LEADS_AT_NODE && route && leads_outside(t, d))
		return REASON_SERVICE_OUTSIDE;
	if (d->destination || led == LEADS_ON)
		return REASON_PASSED;
	if (!route)
		return covered(t) ? REASON_POD_NOT_READY : REASON_PASSED;
	row = find_gateway(t, d);
	if (!d->group)
		return REASON_PASSED;
	if (!row || no_address(&row->gateway))
		return REASON_NO_GATEWAY;
	d->gateway = row->gateway;
	set_egress(d, t, row);
	d->flags &= ~CT_SERVICE; /* it leaves before the host could translate it */
	return REASON_TO_GATEWAY;
}

/* Decides on a flow that came over the overlay for this node as gateway:
 * REASON_TRANSLATED with d->egress set if it has one here, or why it is dropped. */
SUBPROGRAM __u32 decide_service(const struct tuple *t, struct decision *d)
{
	const struct gateway_value *row;
	const struct route_value *route;
	const struct pod_value *pod;

	if (!t || !d)
		return REASON_MALFORMED;
	pod = any_pod(&t->saddr, d->slot);
	route = pod ? route_of(pod, d->slot) : NULL;
	if (!route || known_of_destination(t, d->slot))
		return REASON_NO_RULE;
	d->egress_ruleset = route->egress_ruleset;
	row = find_gateway(t, d);
	if (!d->group || !row)
		return REASON_NO_RULE;
	set_egress(d, t, row);
	return no_address(&d->egress) ? REASON_NO_EGRESS_IP : REASON_TRANSLATED;
}

/* Returns what is known of an egress address with blocks of ports, NULL if it has none. */
static __always_inline const struct block_value *
block_of(const struct address *egress, const struct config_value *cfg)
{
	return cfg->flags & CONFIG_EGRESS_IPS ? bpf_map_lookup_elem(&sluice_blocks, egress) : NULL;
}

static __always_inline bool is_fixed(const struct block_value *block)
{
	return block && block->flags & BLOCK_FIXED;
}

/* Reports whether a gateway that a connection is pinned to still serves. */
static __always_inline bool serves(const struct address *gateway, const struct config_value *cfg)
{
	const struct node_value *node = bpf_map_lookup_elem(&sluice_nodes, gateway);
	const struct block_value *block;

	if (node)
		return node->flags & NODE_ALIVE;
	block = block_of(gateway, cfg);
	return block && !no_address(&block->gateway);
}
