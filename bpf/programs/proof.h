/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Proof that an overlay packet comes from a node of the cluster: a MAC by the cluster's key.
 * It is in the two Ethernet addresses inside the VXLAN packet, which nothing else uses:
 *
 *	destination	02, number of the key, first half of the MAC
 *	source		02, direction, second half of the MAC
 *
 * The MAC is of what all packets of a flow between two nodes have in common. So it is valid
 * for each segment that the kernel makes of a large packet, and segments of one flow can be
 * merged. It does not prove that a packet is new, or that its payload is as it was sent. */

#pragma once

#include "report.h"
#include "siphash.h"

#define PROOF_LOCAL 0x02 /* first byte of a locally administered address */
#define PROOF_UNSIGNED 2 /* beside enum direction */
#define MAC_WITHOUT_PORTS 2 /* in the last byte of what the MAC is of */

struct proof {
	__u8 local;
	__u8 key;
	__u8 first[4];
	__u8 local_too;
	__u8 direction;
	__u8 second[4];
};

static __always_inline const struct overlay_keys_value *overlay_keys(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&sluice_keys, &index);
}

static __always_inline void siphash_add_addresses(struct siphash *s, const struct address *a, const struct address *b,
						  bool ipv4)
{
	if (ipv4) {
		siphash_add(s, a->words[3] | (__u64)b->words[3] << 32);
		return;
	}
	siphash_add(s, a->halves[0]);
	siphash_add(s, a->halves[1]);
	siphash_add(s, b->halves[0]);
	siphash_add(s, b->halves[1]);
}

/* Returns the MAC of a packet's flow that goes in a direction from one node to another. A
 * fragment but the first may not have its ports where it is checked, so its MAC has none,
 * and says so. */
SUBPROGRAM __u64 overlay_mac(const struct packet *p, const struct address *from, const struct address *to,
			     const struct overlay_key *key, __u32 direction)
{
	bool inner4, outer4, ports;
	__u64 last;
	struct siphash s;

	if (!p || !from || !to || !key)
		return 0;
	inner4 = p->flow.family == FAMILY_IPV4;
	outer4 = is_ipv4(to);
	ports = p->shape != SHAPE_LATER_FRAGMENT;
	last = ports ? p->flow.sport | (__u64)p->flow.dport << 16 : (__u64)MAC_WITHOUT_PORTS << 56;
	siphash_begin(&s, key);
	siphash_add_addresses(&s, &p->flow.saddr, &p->flow.daddr, inner4);
	siphash_add_addresses(&s, from, to, outer4);
	siphash_add(&s, last | (__u64)p->flow.protocol << 32 | (__u64)p->flow.family << 40 |
				(__u64)direction << 48 | (__u64)outer4 << 56);
	return siphash_end(&s, (inner4 ? 8 : 32) + (outer4 ? 8 : 32) + 8);
}

/* Puts the proof into a packet that this node sends to another one, if there is a key. */
static __always_inline long prove(struct __sk_buff *ctx, const struct packet *p, const struct config_value *cfg,
				  const struct address *to, __u32 direction)
{
	const struct overlay_keys_value *keys = overlay_keys();
	struct proof proof = {.local = PROOF_LOCAL, .local_too = PROOF_LOCAL, .direction = direction};
	__u64 mac;

	if (!keys || !keys->count)
		return 0;
	mac = overlay_mac(p, &cfg->underlay, to, &keys->keys[0], direction);
	proof.key = keys->keys[0].number;
	__builtin_memcpy(proof.first, &mac, 4);
	__builtin_memcpy(proof.second, (__u8 *)&mac + 4, 4);
	return bpf_skb_store_bytes(ctx, 0, &proof, sizeof(proof), 0);
}

/* Sends a packet, as it is, to another node by the overlay device. */
static __always_inline int encapsulate(struct __sk_buff *ctx, const struct config_value *cfg,
				       const struct address *node)
{
	struct bpf_tunnel_key key = {.tunnel_ttl = ANSWER_HOPS};
	__u64 flags = 0;

	key.tunnel_id = cfg->vni;
	if (is_ipv4(node)) {
		key.remote_ipv4 = bpf_ntohl(node->words[3]);
		key.local_ipv4 = bpf_ntohl(cfg->underlay.words[3]);
	} else {
		flags = BPF_F_TUNINFO_IPV6;
		__builtin_memcpy(key.remote_ipv6, node, 16);
		__builtin_memcpy(key.local_ipv6, &cfg->underlay, 16);
	}
	if (bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), flags))
		return -REASON_WRITE_FAILED;
	return bpf_redirect(cfg->overlay_ifindex, 0);
}

/* Reports whether a proof is one by a key. */
static __always_inline bool proven_by(const struct proof *proof, const struct packet *p, const struct config_value *cfg,
				      const struct address *from, const struct overlay_key *key)
{
	__u64 mac;

	if (proof->key != key->number)
		return false;
	mac = overlay_mac(p, from, &cfg->underlay, key, proof->direction);
	return !__builtin_memcmp(proof->first, &mac, 4) && !__builtin_memcmp(proof->second, (__u8 *)&mac + 4, 4);
}

/* Checks the proof in a packet that came from a node. Returns the direction for which it is
 * one; PROOF_UNSIGNED if it has none and needs none; or a reason, negative, to drop it. */
SUBPROGRAM int proven(struct __sk_buff *ctx, const struct packet *p, const struct config_value *cfg,
		      const struct address *from)
{
	const struct overlay_keys_value *keys = overlay_keys();
	struct proof proof;

	if (!p || !cfg || !from || !keys || bpf_skb_load_bytes(ctx, 0, &proof, sizeof(proof)))
		return -REASON_OVERLAY_KEY;
	if (proof.local == PROOF_LOCAL && proof.local_too == PROOF_LOCAL && proof.direction < DIRECTIONS)
		for (__u32 i = 0; i < OVERLAY_KEYS; i++)
			if (i < keys->count && proven_by(&proof, p, cfg, from, &keys->keys[i]))
				return proof.direction;
	return keys->accept_unsigned ? PROOF_UNSIGNED : -REASON_OVERLAY_KEY;
}
