// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// What the maps make of a packet, as far as network policies are concerned.
const (
	allowed = "allowed"
	denied  = "denied"
	heldNew = "held"    // new flows are dropped, as the pod's policies are not known yet
	notHere = "unknown" // no pod of this node
	noMatch = "no match"
)

// policyInKernel is what the maps make of a packet, by look-ups as the programs do
// them.
func policyInKernel(r bpf.Reader, p policytest.Packet, hostAllowed bool) string {
	pod, local := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(p.Subject)})
	peer, _ := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache", bpf.IPCacheKeyFrom(netip.PrefixFrom(p.Peer, p.Peer.BitLen())))
	switch {
	case !local:
		return notHere
	case hostAllowed && p.Direction == bpf.DirectionIngress && peer.Value.Flags&bpf.IPCacheHost != 0:
		return allowed
	case pod.Flags&bpf.PodPolicyUnknown != 0:
		return heldNew
	case pod.SubjectClass == bpf.NoSubjectClass:
		return allowed
	}
	match := func(class uint32) (bpf.PolicyValue, bool) {
		key := bpf.PolicyKeyOf(pod.SubjectClass, class, p.Direction, p.Protocol, p.Port, 16)
		e, found := bpf.Match[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", key)
		return e.Value, found
	}
	verdict, found := match(bpf.AnyPeerClass)
	if !found {
		return noMatch // there is a default for all traffic
	}
	if own, found := match(peer.Value.PeerClass); found && (own.Precedence > verdict.Precedence || own.Precedence == verdict.Precedence && own.Deny != 0) {
		verdict = own
	}
	if verdict.Deny != 0 {
		return denied
	}
	return allowed
}

// policyOptions are what the flags of the agent say of verdicts.
func (c *cluster) policyOptions() policytest.Options {
	o := policytest.Options{HostAllowed: true}
	for _, arg := range c.args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--enforcement":
			o.Enforcement = value
		case "--allow-localhost":
			o.HostAllowed = value == "always"
		case "--policy-cidr-match":
			o.CIDRPods, o.CIDRNodes = strings.Contains(value, "pods"), strings.Contains(value, "nodes")
		case "--cluster-cidrs":
			for text := range strings.SplitSeq(value, ",") {
				o.ClusterCIDRs = append(o.ClusterCIDRs, netip.MustParsePrefix(text))
			}
		}
	}
	return o
}

// world is what the base tables have.
func (c *cluster) world(txn statedb.ReadTxn) *policytest.World {
	return c.base.World(txn, c.policyOptions())
}

// comparedPackets is how many packets of a world are compared at a rest.
const comparedPackets = 1000

// comparePolicies says where the maps make something else of packets than the
// policies do.
func (c *cluster) comparePolicies(txn statedb.ReadTxn) (err error) {
	w := c.world(txn)
	packets := w.Packets(rand.New(rand.NewPCG(uint64(len(w.Policies)), uint64(len(w.Endpoints)))), comparedPackets)
	c.memory.Read(func(r bpf.Reader) {
		for _, p := range packets {
			want, why := w.Verdict(p)
			text := verdictText(want)
			if !want && w.IsHeld(p.Subject) {
				text = heldNew
			}
			if got := policyInKernel(r, p, w.HostAllowed); got != text {
				err = errors.Join(err, fmt.Errorf("%s: by the maps %s, by the policies %s, %s", p, got, text, why))
			}
		}
	})
	return err
}

func verdictText(allow bool) string {
	if allow {
		return allowed
	}
	return denied
}
