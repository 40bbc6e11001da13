/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At a pod's device: packets whose address is not that of a pod which is known there. */

#pragma once

#include "egress.h"

/* Reports whether a datagram asks for an address, or is the answer. */
static __always_inline bool about_an_address(const struct packet *p, __u16 from, __u16 to)
{
	return p->flow.protocol == IPPROTO_UDP && p->flow.family == FAMILY_IPV6 && p->flow.sport == bpf_htons(from) &&
	       p->flow.dport == bpf_htons(to);
}

/* Reports whether a pod may send a packet from an address that is not its own: requests
 * for an address, and packets to all on the link. Other packets from a link-local address
 * are held, as that address does not tell which policies apply to the pod. */
static __always_inline bool of_the_link(const struct packet *p)
{
	if (to_many(&p->flow))
		return true;
	return about_an_address(p, DHCP6_CLIENT, DHCP6_SERVER) && link_local(&p->flow) &&
	       link_local_address(&p->flow.saddr, FAMILY_IPV6);
}

/* Reports whether a packet to a link-local address may pass: the pod cannot answer from
 * that address. */
static __always_inline bool at_the_link(const struct packet *p)
{
	return link_local_address(&p->flow.daddr, p->flow.family) && !about_an_address(p, DHCP6_SERVER, DHCP6_CLIENT);
}

/* Reports whether a packet is of a pod that may be at this device without being known
 * there yet. */
static __always_inline bool unplaced(const struct packet *p, const struct pod_value *pod,
				     const struct address *addr, __u32 slot)
{
	return (!pod || !pod->ifindex) && of_local_pods(&p->flow, addr, slot);
}

/* Reports whether what such a pod sends is held: a policy could concern it. */
static __noinline int held_at_source(const struct packet *p, const struct config_value *cfg,
				     __u32 slot)
{
	return cfg->flags & CONFIG_NETWORK_POLICIES ||
	       (covered(&p->flow) && !destination_flags(&p->flow, slot));
}

/* The same for what it gets. */
static __always_inline bool held_at_destination(const struct __sk_buff *ctx, const struct packet *p,
						const struct config_value *cfg)
{
	return cfg->flags & CONFIG_NETWORK_POLICIES && !to_many(&p->flow) &&
	       (ctx->ingress_ifindex || !(cfg->flags & CONFIG_ALLOW_LOCALHOST));
}
