// SPDX-License-Identifier: Apache-2.0

package portdemand

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// counts are what the programs have counted.
type counts interface {
	// used returns how many ports of each egress address pods use towards the destination where
	// these are most. loaded: there are programs.
	used() (most map[netip.Addr]int, loaded bool, err error)
	// recount corrects what used returns.
	recount(ctx context.Context) error
	// translations calls f with the source that each connection leaves with.
	translations(f func(netip.AddrPort)) error
}

// kernel are the counts of the kernel.
type kernel struct {
	maps  Maps
	count Recount
}

func (k kernel) used() (most map[netip.Addr]int, loaded bool, err error) {
	m := k.maps(bpf.PortsMap)
	if m == nil {
		return nil, false, nil
	}
	all, err := bpf.DumpKernel[bpf.PortKey, bpf.ShareValue](m)
	if err != nil {
		return nil, true, fmt.Errorf("read which ports are used: %w", err)
	}
	most = map[netip.Addr]int{}
	for _, e := range all {
		if e.Key.Pod != (bpf.Address{}) {
			continue
		}
		addr := e.Key.Egress.Addr()
		most[addr] = max(most[addr], int(e.Value.Used))
	}
	return most, true, nil
}

func (k kernel) recount(ctx context.Context) error { return k.count(ctx) }

func (k kernel) translations(f func(netip.AddrPort)) error {
	for _, name := range natmap.Names() {
		kernelMap := k.maps(name)
		if kernelMap == nil {
			continue
		}
		m, err := natmap.New(name, kernelMap)
		if err != nil {
			return err
		}
		err = m.Each(func(t ctmap.Tuple, to natmap.Translation) bool {
			if t.Flags&ctmap.In != 0 {
				f(t.Destination)
			} else {
				f(to.To)
			}
			return true
		})
		if err != nil {
			return fmt.Errorf("read translations: %w", err)
		}
	}
	return nil
}
