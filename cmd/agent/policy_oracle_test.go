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

// comparePartition says where addresses that are alike to all policies are in
// different classes in the kernel, or others in the same.
func comparePartition(w *policytest.World, r bpf.Reader) error {
	var subjects, peers partition
	for _, addr := range w.Subjects() {
		pod, found := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(addr)})
		if found {
			subjects.add(addr, w.SubjectSignature(addr), pod.SubjectClass)
		}
	}
	if w.Enforcement == "never" {
		return subjects.err
	}
	for _, addr := range w.Peers() {
		e, _ := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache", bpf.IPCacheKeyFrom(netip.PrefixFrom(addr, addr.BitLen())))
		peers.add(addr, w.PeerSignature(addr), e.Value.PeerClass)
	}
	return errors.Join(subjects.err, peers.err)
}

// partition is a one-to-one relation between signatures and classes.
type partition struct {
	classes    map[string]uint32
	signatures map[uint32]string
	err        error
}

func (p *partition) add(addr netip.Addr, signature string, class uint32) {
	if p.classes == nil {
		p.classes, p.signatures = map[string]uint32{"": 0}, map[uint32]string{0: ""}
	}
	if other, known := p.classes[signature]; known && other != class {
		p.err = errors.Join(p.err, fmt.Errorf("%s is in class %d, others alike in %d: %s", addr, class, other, signature))
	}
	if other, known := p.signatures[class]; known && other != signature {
		p.err = errors.Join(p.err, fmt.Errorf("%s is in class %d of %q, but has %q", addr, class, other, signature))
	}
	p.classes[signature], p.signatures[class] = class, signature
}

// agreesOnPolicies waits until nothing changes any more, and compares.
func (c *cluster) agreesOnPolicies(ctx context.Context) error {
	compare := func() (err error) {
		txn := c.base.DB.ReadTxn()
		w := c.world(txn)
		err = errors.Join(c.comparePolicies(txn), c.compareEntries(txn))
		c.memory.Read(func(r bpf.Reader) { err = errors.Join(err, comparePartition(w, r), inClassWithoutVerdicts(r)) })
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
