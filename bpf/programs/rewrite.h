/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Changing addresses and ports of packets, with their checksums. */

#pragma once

#include "egress.h"
#include "translation.h"

#define L3_IPV4_CHECKSUM (ETH_HLEN + 10)

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u32 checksum_offset(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? TCP_CHECKSUM : protocol == IPPROTO_UDP ? UDP_CHECKSUM : ICMP_CHECKSUM;
}

/* Where the checksum of the transport header is; 0 if it has none to keep. */
static __always_inline __u32 checksum_of(const struct packet *p)
{
	switch (p->header_protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return p->l4 + checksum_offset(p->header_protocol);
	}
	return 0;
}

/* Changes address and port of the packet that is in an ICMP error, the opposite
 * ones of those that change outside, and returns by what the sum of its bytes
 * changes in *diff. */
static __noinline int rewrite_embedded(struct __sk_buff *ctx, const struct packet *p, bool source,
				       const struct translation *to, __u32 *diff)
{
	__u32 place = p->inner_l4 + (is_icmp(p->flow.protocol) ? ICMP_ID : source ? 2 : 0);
	__be32 port_before = source ? p->flow.sport : p->flow.dport, port_after = to->port;
	__be32 sum_before = 0, sum_after;
	__u32 offset = p->inner_l3, pseudo;

	if (p->flow.family == FAMILY_IPV4) {
		__be32 before, after = to->addr.words[3];

		offset += source ? offsetof(struct iphdr, daddr) : offsetof(struct iphdr, saddr);
		if (bpf_skb_load_bytes(ctx, offset, &before, sizeof(before)) ||
		    bpf_l3_csum_replace(ctx, p->inner_l3 + offsetof(struct iphdr, check), before, after, 4) ||
		    bpf_skb_store_bytes(ctx, offset, &after, sizeof(after), 0))
			return -EINVAL;
		/* Address and header checksum make up for each other in the sum. */
		*diff = 0;
		pseudo = p->flow.protocol == IPPROTO_ICMP ? 0 : bpf_csum_diff(&before, 4, &after, 4, 0);
	} else {
		struct address before;

		offset += source ? offsetof(struct ipv6hdr, daddr) : offsetof(struct ipv6hdr, saddr);
		if (bpf_skb_load_bytes(ctx, offset, &before, sizeof(before)) ||
		    bpf_skb_store_bytes(ctx, offset, &to->addr, sizeof(to->addr), 0))
			return -EINVAL;
		pseudo = bpf_csum_diff(before.words, 16, (__be32 *)to->addr.words, 16, 0);
		*diff = pseudo;
	}
	*diff = bpf_csum_diff(&port_before, 4, &port_after, 4, *diff);
	if (bpf_skb_store_bytes(ctx, place, &to->port, sizeof(to->port), 0))
		return -EINVAL;

	/* Its own checksum, if so much of the packet is there, and it has one. */
	place = p->inner_l4 + checksum_offset(p->flow.protocol);
	if (bpf_skb_load_bytes(ctx, place, &sum_before, 2) || (!sum_before && p->flow.protocol == IPPROTO_UDP))
		return 0;
	sum_after = csum_fold(bpf_csum_diff(&port_before, 4, &port_after, 4, pseudo + (__u16)~sum_before));
	*diff = bpf_csum_diff(&sum_before, 4, &sum_after, 4, *diff);
	return bpf_skb_store_bytes(ctx, place, &sum_after, 2, 0);
}

/* Adds a difference to the checksum of a transport header. */
static __always_inline long add_to_checksum(struct __sk_buff *ctx, __u32 offset, __u32 diff, __u64 flags)
{
	long err = bpf_l4_csum_replace(ctx, offset, 0, diff, flags | CSUM_IPV6);

	return err == -EINVAL ? bpf_l4_csum_replace(ctx, offset, 0, diff, flags) : err;
}

/* Gives a packet another source, or another destination, and its checksums. */
SUBPROGRAM int rewrite(struct __sk_buff *ctx, const struct packet *p, bool source, const struct translation *to)
{
	__u32 checksum, diff = 0;
	__be16 old_port;
	__u64 flags;

	if (!p || !to)
		return -EINVAL;
	checksum = p->shape == SHAPE_LATER_FRAGMENT ? 0 : checksum_of(p);
	flags = p->header_protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	old_port = source ? p->flow.sport : p->flow.dport;
	if (p->shape == SHAPE_ICMP_ERROR) {
		if (rewrite_embedded(ctx, p, source, to, &diff))
			return -EINVAL;
		if (p->flow.family == FAMILY_IPV4 && bpf_l4_csum_replace(ctx, checksum, 0, diff, 0))
			return -EINVAL;
	} else if (checksum && old_port != to->port) {
		__u32 port = is_icmp(p->flow.protocol) ? p->l4 + ICMP_ID : source ? p->l4 : p->l4 + 2;

		if (bpf_l4_csum_replace(ctx, checksum, old_port, to->port, flags | 2) ||
		    bpf_skb_store_bytes(ctx, port, &to->port, sizeof(to->port), 0))
			return -EINVAL;
	}

	if (p->flow.family == FAMILY_IPV4) {
		__u32 offset = ETH_HLEN + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
		__be32 before, after = to->addr.words[3];

		if (bpf_skb_load_bytes(ctx, offset, &before, sizeof(before)))
			return -EINVAL;
		/* ICMP has no pseudo header in its sum. */
		if (checksum && p->header_protocol != IPPROTO_ICMP &&
		    bpf_l4_csum_replace(ctx, checksum, before, after, flags | BPF_F_PSEUDO_HDR | 4))
			return -EINVAL;
		if (bpf_l3_csum_replace(ctx, L3_IPV4_CHECKSUM, before, after, 4))
			return -EINVAL;
		return bpf_skb_store_bytes(ctx, offset, &after, sizeof(after), 0);
	} else {
		__u32 offset = ETH_HLEN + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
		struct address before;

		if (bpf_skb_load_bytes(ctx, offset, &before, sizeof(before)))
			return -EINVAL;
		diff = bpf_csum_diff(before.words, 16, (__be32 *)to->addr.words, 16, diff);
		if (checksum && add_to_checksum(ctx, checksum, diff, flags | BPF_F_PSEUDO_HDR))
			return -EINVAL;
		return bpf_skb_store_bytes(ctx, offset, &to->addr, sizeof(to->addr), 0);
	}
}
