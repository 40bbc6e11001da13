/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* A node is silent about an egress address that it has not now: another node may have it. */

#pragma once

#include "lease.h"
#include "link.h"

static __always_inline bool is_lapsed(const struct address *addr)
{
	const struct votes_value *v = votes_for(addr);

	return v && !is_held(v);
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

/* Reports whether a packet at a device is for an address that this node may have but has not, or
 * from one. */
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
