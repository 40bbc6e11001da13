/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* ICMP errors in answer to packets that cannot be forwarded, made of the packet
 * itself. */

#pragma once

#include "nat.h"

#define EMBEDDED_MAX 96 /* bytes of the packet that an error repeats at most */
#define ANSWER_HOPS 64

struct icmp_message {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 mtu;
};

/* What goes before the repeated packet. */
struct answer4 {
	struct iphdr ip;
	struct icmp_message icmp;
};

struct answer6 {
	struct ipv6hdr ip;
	struct icmp_message icmp;
};

/* Cuts the packet to what is repeated: the IP header and what its sender needs
 * to know the connection. The checksum's place must stay, as the kernel may have
 * still to fill it in. Returns the size, or 0. */
static __always_inline __u32 cut(struct __sk_buff *ctx, const struct packet *p, __u8 *embedded)
{
	__u32 size = p->l4 - ETH_HLEN + (p->flow.protocol == IPPROTO_TCP && p->shape == SHAPE_WHOLE ? TCP_MIN : 8);

	if (size > EMBEDDED_MAX || size < 28 || ETH_HLEN + size > ctx->len)
		return 0;
	size &= 0x7f;
	if (size > EMBEDDED_MAX || size < 28)
		return 0;
	if (bpf_skb_load_bytes(ctx, ETH_HLEN, embedded, size) || bpf_skb_change_tail(ctx, ETH_HLEN + size, 0))
		return 0;
	return size;
}

static __always_inline int swap_macs(struct __sk_buff *ctx)
{
	struct ethhdr eth;
	__u8 mac[ETH_ALEN];

	if (bpf_skb_load_bytes(ctx, 0, &eth, sizeof(eth)))
		return -EINVAL;
	__builtin_memcpy(mac, eth.h_dest, ETH_ALEN);
	__builtin_memcpy(eth.h_dest, eth.h_source, ETH_ALEN);
	__builtin_memcpy(eth.h_source, mac, ETH_ALEN);
	return bpf_skb_store_bytes(ctx, 0, &eth, sizeof(eth), 0);
}

SUBPROGRAM int answer4(struct __sk_buff *ctx, const struct packet *p, const struct address *from, __u32 type_and_code,
		       __u32 mtu)
{
	__u8 embedded[EMBEDDED_MAX] = {};
	struct answer4 a = {
		.ip = {.version = 4, .ihl = 5, .ttl = ANSWER_HOPS, .protocol = IPPROTO_ICMP},
		.icmp = {.type = type_and_code >> 8, .code = type_and_code, .mtu = bpf_htonl(mtu)},
	};
	__s64 sum;
	__u32 size;

	if (!p || !from)
		return -EINVAL;
	size = cut(ctx, p, embedded);
	if (!size || bpf_skb_adjust_room(ctx, sizeof(a), BPF_ADJ_ROOM_MAC, 0))
		return -EINVAL;
	a.ip.saddr = from->words[3];
	a.ip.daddr = p->source.words[3];
	a.ip.tot_len = bpf_htons(sizeof(a) + size);
	a.ip.check = csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&a.ip, sizeof(a.ip), 0));
	sum = bpf_csum_diff(NULL, 0, (__be32 *)embedded, sizeof(embedded), 0);
	a.icmp.checksum = csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&a.icmp, sizeof(a.icmp), sum));
	if (bpf_skb_store_bytes(ctx, ETH_HLEN, &a, sizeof(a), 0))
		return -EINVAL;
	return swap_macs(ctx);
}

SUBPROGRAM int answer6(struct __sk_buff *ctx, const struct packet *p, const struct address *from, __u32 type_and_code,
		       __u32 mtu)
{
	__u8 embedded[EMBEDDED_MAX] = {};
	struct answer6 a = {
		.ip = {.version = 6, .hop_limit = ANSWER_HOPS, .nexthdr = IPPROTO_ICMPV6},
		.icmp = {.type = type_and_code >> 8, .code = type_and_code, .mtu = bpf_htonl(mtu)},
	};
	struct {
		__be32 length;
		__be32 protocol;
	} pseudo = {.protocol = bpf_htonl(IPPROTO_ICMPV6)};
	__s64 sum;
	__u32 size;

	if (!p || !from)
		return -EINVAL;
	size = cut(ctx, p, embedded);
	pseudo.length = bpf_htonl(sizeof(a.icmp) + size);
	if (!size || bpf_skb_adjust_room(ctx, sizeof(a), BPF_ADJ_ROOM_MAC, 0))
		return -EINVAL;
	__builtin_memcpy(&a.ip.saddr, from, 16);
	__builtin_memcpy(&a.ip.daddr, &p->source, 16);
	a.ip.payload_len = bpf_htons(sizeof(a.icmp) + size);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)embedded, sizeof(embedded), 0);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&a.ip.saddr, 32, sum);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), sum);
	a.icmp.checksum = csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&a.icmp, sizeof(a.icmp), sum));
	if (bpf_skb_store_bytes(ctx, ETH_HLEN, &a, sizeof(a), 0))
		return -EINVAL;
	return swap_macs(ctx);
}

/* Reports whether the packet may be answered with an error (RFC 1122 3.2.2). */
static __always_inline bool answerable(const struct packet *p)
{
	if (p->shape == SHAPE_ICMP_ERROR || p->shape == SHAPE_LATER_FRAGMENT)
		return false;
	return !(is_icmp(p->header_protocol) && icmp_error(p->flow.family, p->icmp_type));
}

/* Turns the packet into the answer that it is too big for an MTU. */
static __always_inline int answer_too_big(struct __sk_buff *ctx, const struct packet *p, __u32 mtu)
{
	/* A later fragment is answered too: the first one may have been as long
	 * as this is, and its sender would not hear of it otherwise. */
	if (p->shape == SHAPE_ICMP_ERROR)
		return -EINVAL;
	if (p->flow.family == FAMILY_IPV4)
		return answer4(ctx, p, &p->flow.daddr, ICMP4_UNREACHABLE << 8 | ICMP4_FRAG_NEEDED, mtu);
	return answer6(ctx, p, &p->flow.daddr, ICMP6_TOO_BIG << 8, mtu);
}

/* Turns the packet into the answer that it has been forwarded too often. Pods
 * are answered in the name of this node, if it has an address of the family. To
 * others it has no name but the address that they sent to. */
static __always_inline int answer_ttl(struct __sk_buff *ctx, const struct packet *p, const struct config_value *cfg,
				      __u32 direction)
{
	bool ours = direction == DIRECTION_EGRESS && is_ipv4(&cfg->underlay) == (p->flow.family == FAMILY_IPV4);
	const struct address *from = ours ? &cfg->underlay : &p->flow.daddr;

	if (!answerable(p))
		return -EINVAL;
	if (p->flow.family == FAMILY_IPV4)
		return answer4(ctx, p, from, ICMP4_TIME_EXCEEDED << 8, 0);
	return answer6(ctx, p, from, ICMP6_TIME_EXCEEDED << 8, 0);
}
