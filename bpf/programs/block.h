/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Egress addresses that move between nodes, with connections that go on. The node of a pod
 * translates its packets, by a port of a block that no other node has of the address, and sends
 * them to the gateway that has the address now. The gateway sends them out as they are, and
 * replies to the node that has the block of their port. It keeps nothing of a connection, so
 * the next gateway goes on with it.
 *
 * A fixed address is served in the same way, by the gateway that has it: so connections go on
 * when that has booted. Of such an address its host may send too: to_netdev gives it ports of
 * this node's blocks, so that replies come back. */

#pragma once

#include "lease.h"
#include "track.h"

/* Reports whether an address is an egress address with blocks of ports: one that moves, or a
 * fixed one. */
static __noinline int moves(const struct address *egress, const struct config_value *cfg)
{
	return block_of(egress, cfg) != NULL;
}

/* Returns the node that has a port of an address, NULL if none has. */
static __always_inline const struct owner_value *
owner_of(const struct block_value *block, const struct address *egress, __be16 port)
{
	struct owner_key key ALIGNED = {.egress = *egress};
	__u32 n = bpf_ntohs(port);

	if (n < BLOCK_PORT_MIN || !block->size)
		return NULL;
	key.block = (n - BLOCK_PORT_MIN) / block->size;
	return bpf_map_lookup_elem(&sluice_owners, &key);
}

/* Returns the device by which this node sends with an egress address, or why, negative, it does
 * not. */
static __always_inline int device_of(const struct address *egress, const struct block_value *block)
{
	const struct exit_value *exit;
	const struct votes_value *v;

	if (is_fixed(block)) {
		exit = bpf_map_lookup_elem(&sluice_exits, egress);
		return exit ? (int)exit->ifindex : -REASON_NO_EGRESS_IP;
	}
	v = votes_for(egress);
	return v && v->ifindex && is_held(v) ? (int)v->ifindex : -REASON_NOT_OWNED;
}

/* Prepares a local pod's packet for being translated here, if d->gateway is an egress address with
 * blocks. What is of the other family goes to the node that has the address, which translates it to
 * another one. Returns 0, or a reason, negative, if there is no such node. */
SUBPROGRAM int enter_block(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
			   const struct config_value *cfg)
{
	const struct block_value *block;
	struct ct_entry *e;
	int device;

	if (!p || !d || !cfg)
		return -REASON_WRITE_FAILED;
	block = bpf_map_lookup_elem(&sluice_blocks, &d->gateway);
	if (!block)
		return bpf_map_lookup_elem(&sluice_nodes, &d->gateway) ? 0 : -REASON_NO_GATEWAY;
	if (no_address(&block->gateway))
		return -REASON_NO_GATEWAY;
	if (is_ipv4(&d->gateway) != (p->flow.family == FAMILY_IPV4)) {
		d->gateway = block->gateway;
		e = ct_find_original(p, TUPLE_OUT);
		if (e)
			e->gateway = d->gateway; /* it stays with that node, and replies come from there */
		return 0;
	}
	d->of_block = 1;
	d->egress = d->gateway;
	d->exit = cfg->overlay_ifindex;
	if (!same_address(&block->gateway, &cfg->underlay))
		return 0;
	device = device_of(&d->egress, block);
	if (device < 0)
		return device;
	d->exit = device;
	return hop(ctx, p);
}

/* Sends a packet with its egress address and port to the node that has the address, or out if
 * that is this one. */
SUBPROGRAM int to_block(struct __sk_buff *ctx, struct packet *p, const struct decision *d,
			const struct config_value *cfg)
{
	const struct block_value *block;
	struct address addr;
	__be16 port;
	int ret;

	if (!p || !d || !cfg)
		return -REASON_WRITE_FAILED;
	if (d->exit != cfg->overlay_ifindex)
		return to_outside(ctx, d, cfg);
	block = bpf_map_lookup_elem(&sluice_blocks, &d->egress);
	if (!block)
		return -REASON_NO_GATEWAY;
	/* The proof is of the flow as the gateway sees it. */
	addr = p->flow.saddr;
	port = p->flow.sport;
	p->flow.saddr = d->egress;
	p->flow.sport = d->egress_port;
	ret = clamp(ctx, p, d) ?: to_node(ctx, p, cfg, &block->gateway, DIRECTION_EGRESS);
	p->flow.saddr = addr;
	p->flow.sport = port;
	return ret;
}

/* At the gateway: sends a packet out that a node has translated. */
SUBPROGRAM int block_to_outside(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
				const struct config_value *cfg, const struct address *node)
{
	const struct block_value *block;
	const struct owner_value *owner;
	int device, err;

	if (!p || !d || !cfg || !node)
		return -REASON_WRITE_FAILED;
	if (p->unknown_fragment)
		return -REASON_UNKNOWN_FRAGMENT;
	block = block_of(&p->flow.saddr, cfg);
	owner = block ? owner_of(block, &p->flow.saddr, p->flow.sport) : NULL;
	if (!owner || !same_address(&owner->node, node) || !same_address(&p->source, &p->flow.saddr))
		return -REASON_OTHER_BLOCK;
	device = device_of(&p->flow.saddr, block);
	if (device < 0)
		return device;
	if (known_of_destination(&p->flow, d->slot))
		return -REASON_NO_RULE;
	d->egress = p->flow.saddr;
	d->exit = device;
	err = fits(ctx, p, d, device) ?: hop(ctx, p);
	return err ?: to_outside(ctx, d, cfg);
}

/* At the gateway: sends a reply to the node that has its port. Returns 0 if that is this
 * one, or if it is no reply. Before the programs know that node, or that the address is here, the
 * reply is dropped: the host would reset the connection. A fixed address without exit is the
 * host's alone. */
SUBPROGRAM int block_from_outside(struct __sk_buff *ctx, struct packet *p, struct decision *d,
				  const struct config_value *cfg)
{
	const struct block_value *block;
	const struct owner_value *owner;
	int device;

	if (!p || !d || !cfg)
		return 0;
	block = block_of(&p->flow.daddr, cfg);
	if (bpf_ntohs(p->flow.dport) < BLOCK_PORT_MIN ||
	    (!block && !votes_for(&p->flow.daddr)))
		return 0;
	owner = block ? owner_of(block, &p->flow.daddr, p->flow.dport) : NULL;
	device = device_of(&p->flow.daddr, block);
	if ((owner && same_address(&owner->node, &cfg->underlay)) || (is_fixed(block) && device < 0))
		return 0;
	if (!owner || device < 0)
		return -REASON_NOT_OWNED;
	keep_ports(p);
	d->gateway = p->flow.daddr;
	return fits(ctx, p, d, cfg->overlay_ifindex) ?: hop(ctx, p) ?: clamp(ctx, p, d) ?:
		to_node(ctx, p, cfg, &owner->node, DIRECTION_INGRESS);
}

/* At the pod's node: hands it a reply that came from a gateway, to an egress address that moves. */
SUBPROGRAM int block_to_pod(struct __sk_buff *ctx, struct packet *p, struct decision *d,
			    const struct config_value *cfg)
{
	const struct pod_value *pod;
	struct translation to = {};
	const struct ct_entry *e;
	int err;

	if (!p || !d || !cfg)
		return -REASON_WRITE_FAILED;
	if (p->unknown_fragment)
		return -REASON_UNKNOWN_FRAGMENT;
	d->gateway = p->flow.daddr;
	if (!nat_find(&p->flow, TUPLE_IN, &to, p->time))
		return -REASON_NO_RULE;
	pod = local_pod(&to.addr, d->slot);
	if (!pod)
		return -REASON_NO_RULE;
	err = fits(ctx, p, d, pod->ifindex) ?:
	      within_limit(ctx, cfg, to.counter, to.created / SECOND, &to.addr, DIRECTION_INGRESS);
	if (err)
		return err;
	if (rewrite(ctx, p, false, &to))
		return -REASON_WRITE_FAILED;
	p->flow.daddr = to.addr;
	if (p->flow.dport)
		p->flow.dport = to.port;
	e = ct_find_replied(p);
	if (!e || !same_address(&e->gateway, &d->gateway))
		return -REASON_NO_RULE;
	count_traffic(to.counter, to.created / SECOND, ctx->len, DIRECTION_INGRESS);
	return to_local_pod(ctx, pod);
}
