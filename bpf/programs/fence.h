/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Egress addresses that move between nodes. A node has the lease of one until a time that its
 * agent puts off again and again: an agent that is stopped, or has lost the API server, does
 * not, and from that time on the node is silent about the address, as another one may have it. */

#pragma once

#include "link.h"

static __always_inline bool is_lapsed(const struct address *addr)
{
	const struct floating_value *lease = bpf_map_lookup_elem(&sluice_floating, addr);

	return lease && bpf_ktime_get_boot_ns() >= *(volatile const __u64 *)&lease->deadline;
}

/* Reports whether ARP asks for such an address, or says that this node has it. */
static __noinline int arp_is_lapsed(struct __sk_buff *ctx, __u32 direction)
{
	struct address addr;
	struct arp arp;

	if (bpf_skb_load_bytes(ctx, ETH_HLEN, &arp, sizeof(arp)))
		return false;
	addr = mapped(direction == DIRECTION_INGRESS ? arp.target : arp.sender);
	return is_lapsed(&addr);
}

/* Reports whether a packet at a device is for an address that this node has not the lease of any
 * more, or from one. */
SUBPROGRAM int fenced(struct __sk_buff *ctx, const struct packet *p, __u32 direction)
{
	struct address addr;

	if (!p)
		return 0;
	if (ctx->protocol == bpf_htons(ETH_P_ARP))
		return arp_is_lapsed(ctx, direction);
	if (!p->flow.family)
		return 0;
	addr = direction == DIRECTION_INGRESS ? p->flow.daddr : p->source;
	if (is_lapsed(&addr))
		return 1;
	if (p->flow.protocol != IPPROTO_ICMPV6 || p->icmp_type != (direction == DIRECTION_INGRESS ?
			ICMP6_NEIGHBOUR_SOLICITATION : ICMP6_NEIGHBOUR_ADVERTISEMENT))
		return 0;
	return !bpf_skb_load_bytes(ctx, p->l4 + ICMP_HEADER, &addr, sizeof(addr)) && is_lapsed(&addr);
}
