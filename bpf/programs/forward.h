/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The ways that a packet can leave: to a pod here, to another node, to the
 * outside. Each returns a verdict, or a reason, negative, why it could not. */

#pragma once

#include "answer.h"
#include "probe.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_SIZE 4
#define TCP_OPTIONS_MAX 40

#define IPV4_TCP_HEADERS 40 /* bytes of IP and TCP headers without options */
#define IPV6_TCP_HEADERS 60

static __always_inline void set_mark(struct __sk_buff *ctx, const struct config_value *cfg, __u32 mark)
{
	ctx->mark = (ctx->mark & ~cfg->mark_mask) | (mark << (cfg->mark_shift & 31));
}

static __always_inline __u32 get_mark(__u32 mark, const struct config_value *cfg)
{
	return (mark & cfg->mark_mask) >> (cfg->mark_shift & 31);
}

/* Takes one off the TTL, as a router does. */
static __always_inline int hop(struct __sk_buff *ctx, const struct packet *p)
{
	__u8 hops = p->hops - 1;
	long err;

	if (p->hops <= 1)
		return -REASON_TTL_EXCEEDED;
	if (p->flow.family == FAMILY_IPV4) {
		__be16 before = bpf_htons((__u16)p->hops << 8 | p->header_protocol);
		__be16 after = bpf_htons((__u16)hops << 8 | p->header_protocol);

		err = bpf_l3_csum_replace(ctx, L3_IPV4_CHECKSUM, before, after, 2) ?:
		      bpf_skb_store_bytes(ctx, ETH_HLEN + offsetof(struct iphdr, ttl), &hops, 1, 0);
	} else {
		err = bpf_skb_store_bytes(ctx, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &hops, 1, 0);
	}
	return err ? -REASON_WRITE_FAILED : 0;
}

/* The search for an option of a TCP header, a callback's context. */
struct option_search {
	__u8 options[TCP_OPTIONS_MAX + 4];
	__u32 size;
	__u32 at; /* found: the option begins here */
	__u32 found;
};

static long next_option(__u32 index, struct option_search *s)
{
	__u32 at = s->at;

	(void)index;
	if (at >= s->size || at >= TCP_OPTIONS_MAX || s->options[at] == TCP_OPTION_END)
		return 1;
	if (s->options[at] == TCP_OPTION_MSS) {
		s->found = s->options[at + 1] == TCP_OPTION_MSS_SIZE && at + TCP_OPTION_MSS_SIZE <= s->size;
		return 1;
	}
	if (s->options[at] == TCP_OPTION_NOP)
		s->at = at + 1;
	else if (s->options[at + 1] < 2)
		return 1;
	else
		s->at = at + s->options[at + 1];
	return 0;
}

/* Lowers the maximal segment size of a packet that opens a TCP connection to
 * what fits an MTU. */
SUBPROGRAM int clamp_mss(struct __sk_buff *ctx, const struct packet *p, __u32 mtu)
{
	struct option_search s = {};
	__u32 headers, size, place;
	__be16 before, after;
	__u8 offset;

	if (!p)
		return -EINVAL;
	headers = p->flow.family == FAMILY_IPV4 ? IPV4_TCP_HEADERS : IPV6_TCP_HEADERS;
	if (mtu <= headers || bpf_skb_load_bytes(ctx, p->l4 + TCP_OFFSET, &offset, 1))
		return 0;
	size = (offset >> 4) * 4 - TCP_MIN;
	if (size == 0 || size > TCP_OPTIONS_MAX || bpf_skb_load_bytes(ctx, p->l4 + TCP_MIN, s.options, size))
		return 0;
	s.size = size;
	bpf_loop(TCP_OPTIONS_MAX, next_option, &s, 0);
	if (!s.found || s.at > TCP_OPTIONS_MAX - TCP_OPTION_MSS_SIZE)
		return 0;

	place = p->l4 + TCP_MIN + s.at + 2;
	if (bpf_skb_load_bytes(ctx, place, &before, sizeof(before)) || bpf_ntohs(before) <= mtu - headers)
		return 0;
	after = bpf_htons(mtu - headers);
	if (bpf_skb_store_bytes(ctx, place, &after, sizeof(after), 0))
		return -EINVAL;
	if (s.at & 1) { /* the sum has its bytes the other way round */
		before = __builtin_bswap16(before);
		after = __builtin_bswap16(after);
	}
	return bpf_l4_csum_replace(ctx, p->l4 + TCP_CHECKSUM, before, after, 2);
}

/* Has a TCP connection that goes over the overlay, whose MTU is d->mtu, use
 * segments that fit. */
static __always_inline int clamp(struct __sk_buff *ctx, const struct packet *p, const struct decision *d)
{
	if (p->header_protocol != IPPROTO_TCP || !(p->tcp_flags & TCP_SYN) || p->shape != SHAPE_WHOLE)
		return 0;
	return clamp_mss(ctx, p, d->mtu) ? -REASON_WRITE_FAILED : 0;
}

/* Encapsulates a packet to a node: in the direction of egress if that is its gateway, of
 * ingress if its pod is there. */
SUBPROGRAM int to_node(struct __sk_buff *ctx, const struct packet *p, const struct config_value *cfg,
		       const struct address *node, __u32 direction)
{
	if (!p || !cfg || !node || prove(ctx, p, cfg, node, direction))
		return -REASON_WRITE_FAILED;
	if (direction == DIRECTION_EGRESS)
		note_path(node, p->time, true);
	return encapsulate(ctx, cfg, node);
}

/* Hands a packet to a local pod, by its to_pod program. */
static __always_inline int to_local_pod(struct __sk_buff *ctx, const struct pod_value *pod)
{
	/* Its source is no device's: that of an overlay packet is half a proof. */
	struct ethhdr eth = {.h_source = {PROOF_LOCAL}};
	__u32 ifindex = pod->ifindex;
	const __u8 *mac = pod->mac;

	/* Where its address is not known, there is a route to the pod by the device. */
	if (!(mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]))
		return bpf_redirect_neigh(ifindex, NULL, 0, 0);
	__builtin_memcpy(eth.h_dest, mac, ETH_ALEN);
	if (bpf_skb_store_bytes(ctx, 0, &eth, 2 * ETH_ALEN, 0))
		return -REASON_WRITE_FAILED;
	return bpf_redirect(ifindex, 0);
}

/* Sends a translated packet out. */
static __always_inline int to_outside(struct __sk_buff *ctx, const struct decision *d, const struct config_value *cfg)
{
	set_mark(ctx, cfg, MARK_TRANSLATED);
	return bpf_redirect_neigh(d->exit, NULL, 0, 0);
}

/* Drops a packet that found no way out. One that was too big or too old is answered
 * to where it came from: a node, or else the device. what is a WHAT. */
static __always_inline int refuse(struct __sk_buff *ctx, struct packet *p, const struct decision *d,
				  const struct config_value *cfg, const struct address *node, __u32 what)
{
	__u8 reason = what;
	int err = -EINVAL;

	count(reason, what >> 16, ctx->len);
	report(ctx, p, d, EVENT_DROP, what);
	if (reason == REASON_TOO_BIG)
		err = answer_too_big(ctx, p, d->mtu);
	else if (reason == REASON_TTL_EXCEEDED)
		err = answer_ttl(ctx, p, cfg, (what >> 16) & 1);
	if (err)
		return TCX_DROP;
	if (!node)
		return bpf_redirect(ctx->ifindex, 0);
	__builtin_memset(p, 0, sizeof(*p));
	parse(ctx, p);
	return to_node(ctx, p, cfg, node, DIRECTION_INGRESS) < 0 ? TCX_DROP : TCX_REDIRECT;
}

/* Makes a verdict of what a way out returned: what is a WHAT of its reason if it
 * was found. */
static __always_inline int finish(struct __sk_buff *ctx, struct packet *p, const struct decision *d,
				  const struct config_value *cfg, const struct address *node, int ret, __u32 what)
{
	if (ret < 0)
		return refuse(ctx, p, d, cfg, node, (what & ~0xffU) | (__u32)-ret);
	count(what & 0xff, what >> 16, ctx->len);
	return ret;
}
