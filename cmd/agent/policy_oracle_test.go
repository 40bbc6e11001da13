// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// comparePartition says where addresses that all policies treat in the same way have
// different rulesets or classes in the kernel. Others may share them: classes depend only on
// what is in use on this node.
func comparePartition(w *policytest.World, r bpf.Reader) error {
	subjects, peers := newPartition("ruleset"), newPartition("class")
	for _, addr := range w.Subjects() {
		pod, found := bpf.Get[bpf.PodKey, bpf.PodValue](
			r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(addr)})
		subject, known := bpf.Get[bpf.SubjectKey, bpf.SubjectValue](
			r, "sluice_subjects", bpf.SubjectKey{Subject: pod.Subject})
		if found && known {
			subjects.add(addr, w.SubjectSignature(addr), subject.Ruleset)
		}
	}
	if w.Enforcement == "never" {
		return subjects.err
	}
	for _, addr := range w.Peers() {
		e, _ := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](
			r, "sluice_ipcache", bpf.IPCacheKeyFrom(netip.PrefixFrom(addr, addr.BitLen())))
		peer, found := bpf.Get[bpf.PeerKey, bpf.PeerValue](
			r, "sluice_peers", bpf.PeerKey{Member: e.Value.Member})
		if found {
			peers.add(addr, w.PeerSignature(addr), peer.Class)
		}
	}
	return errors.Join(subjects.err, peers.err)
}

// partition has the number of each signature.
type partition struct {
	of      string
	numbers map[string]uint32
	err     error
}

func newPartition(of string) *partition {
	return &partition{of: of, numbers: map[string]uint32{}}
}

func (p *partition) add(addr netip.Addr, signature string, number uint32) {
	if other, known := p.numbers[signature]; known && other != number {
		p.err = errors.Join(p.err, fmt.Errorf("%s has %s %d, others with its signature %d: %s",
			addr, p.of, number, other, signature))
	}
	p.numbers[signature] = number
}

// agreesOnPolicies waits until nothing changes any more, and compares.
func (c *cluster) agreesOnPolicies(ctx context.Context) error {
	compare := func() (err error) {
		txn := c.base.DB.ReadTxn()
		w := c.world(txn)
		err = c.comparePolicies(txn)
		c.memory.Read(func(r bpf.Reader) { err = errors.Join(err, comparePartition(w, r)) })
		return err
	}
	if err := c.quietFor(ctx, settled); err != nil || compare() == nil {
		return err
	}
	if err := c.quietFor(ctx, surelySettled); err != nil {
		return err
	}
	return compare()
}
