// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// noted is the map in which the programs note packets and answers of the nodes that have an entry.
type noted struct{ entries *ebpf.Map }

// add has the programs note what there is of a node, and returns what they have noted before.
func (n noted) add(node netip.Addr) (value bpf.PathValue, err error) {
	key := bpf.NodeKey{Addr: bpf.AddressFrom(node)}
	err = n.entries.Lookup(key, &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = n.entries.Update(key, value, ebpf.UpdateNoExist)
	}
	if err != nil {
		return value, fmt.Errorf("add %s to %s: %w", node, bpf.PathsMap, err)
	}
	return value, nil
}

// read returns what the programs have noted of a node.
func (n noted) read(node netip.Addr) (value bpf.PathValue, err error) {
	if err := n.entries.Lookup(bpf.NodeKey{Addr: bpf.AddressFrom(node)}, &value); err != nil {
		return value, fmt.Errorf("read %s in %s: %w", node, bpf.PathsMap, err)
	}
	return value, nil
}

// removeOthers removes the entries of nodes that are not probed, also those of a former run.
func (n noted) removeOthers(probed map[string]*path) error {
	wanted := map[bpf.Address]bool{}
	for _, p := range probed {
		wanted[bpf.AddressFrom(p.target.Addr)] = true
	}
	var key bpf.NodeKey
	var value bpf.PathValue
	var others []bpf.NodeKey
	entries := n.entries.Iterate()
	for entries.Next(&key, &value) {
		if !wanted[key.Addr] {
			others = append(others, key)
		}
	}
	errs := []error{entries.Err()}
	for _, other := range others {
		if err := n.entries.Delete(other); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove %s from %s: %w", other, bpf.PathsMap, err))
		}
	}
	return errors.Join(errs...)
}
