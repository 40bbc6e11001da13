// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

// egressIPPool is an EgressIPPool.
type egressIPPool struct {
	object
	Spec struct {
		CIDRs        []string              `json:"cidrs"`
		Ranges       []addrRange           `json:"ranges"`
		Exclude      []string              `json:"exclude"`
		NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
		MaxPerNode   *int64                `json:"maxPerNode"`
		Fixed        bool                  `json:"fixed"`

		PortsPerBlock *int64 `json:"portsPerBlock"`
	} `json:"spec"`
	Status poolStatus `json:"status"`
}

type addrRange struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

// maxAddrsPerNode is the most that one node may have, by the size of the map.
const maxAddrsPerNode = 1024

// EgressIPPoolKind returns the kind of the pools of egress addresses, which are read
// with --egress-ips, beside [Kinds].
func EgressIPPoolKind() *Kind {
	return &Kind{
		Group: "sluice.io", Version: "v1alpha1", Kind: "EgressIPPool", Resource: "egressippools",
		Guarded: true,
		decoder: decoderFor(egressIPPools),
		open: func(t *Tables) *Store {
			return storeOf(t.EgressIPPools, byName(tables.EgressIPPoolByName))
		},
	}
}

// operatorPoolKind is [EgressIPPoolKind] for the operator, which writes the status.
func operatorPoolKind() *Kind {
	k := EgressIPPoolKind()
	k.decoder = decoderFor(
		func(o *egressIPPool, name tables.Name, errs *fieldErrors) []*tables.EgressIPPool {
			rows := egressIPPools(o, name, errs)
			rows[0].Object = o.Status.object(o.Metadata.ResourceVersion)
			return rows
		})
	return k
}

func egressIPPools(o *egressIPPool, name tables.Name, errs *fieldErrors) []*tables.EgressIPPool {
	p := &tables.EgressIPPool{
		Name: name.Name, UID: o.Metadata.UID, Created: o.created(errs),
		Prefixes: errs.prefixes("spec.cidrs", o.Spec.CIDRs),
	}
	for i, r := range o.Spec.Ranges {
		if parsed, ok := r.parse(indexed("spec.ranges", i), errs); ok {
			p.Ranges = append(p.Ranges, parsed)
		}
	}
	p.Ranges = distinct(p.Ranges)
	if len(o.Spec.CIDRs)+len(o.Spec.Ranges) == 0 {
		errs.add("spec.cidrs", "required, unless there are ranges")
	}
	for i, text := range o.Spec.Exclude {
		p.Excluded = errs.excluded(p.Excluded, indexed("spec.exclude", i), text)
	}
	p.Excluded = distinct(p.Excluded)
	p.PortsPerBlock = portsPerBlock("spec.portsPerBlock", o.Spec.PortsPerBlock, errs)
	p.Blocks = o.Status.blocks(tables.PortBlocks(p.PortsPerBlock), errs)
	p.Allocations = o.Status.allocations(errs)
	p.Nodes = selectorText("spec.nodeSelector", o.Spec.NodeSelector, errs)
	if m := o.Spec.MaxPerNode; m != nil {
		p.MaxPerNode = int(min(*m, maxAddrsPerNode))
		if *m < 1 || *m > maxAddrsPerNode {
			errs.add("spec.maxPerNode", strconv.FormatInt(*m, 10)+" is out of bounds: want 1 to "+
				strconv.Itoa(maxAddrsPerNode))
		}
	}
	p.Fixed = o.Spec.Fixed
	if p.Fixed && o.Spec.NodeSelector != nil {
		errs.add("spec.nodeSelector", "excludes fixed, as the addresses are at nodes already")
	}
	if p.Fixed && o.Spec.MaxPerNode != nil {
		errs.add("spec.maxPerNode", "excludes fixed, as the addresses are at nodes already")
	}
	// With one of these left out more addresses would move, or to other nodes, or nodes would
	// take ports of others.
	var wrong fieldErrors
	for _, field := range []string{
		"spec.exclude", "spec.nodeSelector", "spec.maxPerNode", "spec.portsPerBlock",
	} {
		for _, e := range errs.of(field) {
			wrong.add(e.Field, e.Reason)
		}
	}
	p.Error, p.Errors = wrong.String(), *errs
	return one(p)
}

func (r addrRange) parse(field string, errs *fieldErrors) (tables.AddrRange, bool) {
	first, err := parseAddr(r.Start)
	if err != nil {
		errs.add(field+".start", err.Error())
	}
	last, err := parseAddr(r.End)
	if err != nil {
		errs.add(field+".end", err.Error())
	}
	parsed := tables.AddrRange{First: first, Last: last}
	if len(errs.of(field)) == 0 && (!parsed.Contains(first) || !parsed.Contains(last)) {
		errs.add(field, "its start is behind its end, or of another family")
	}
	return parsed, len(errs.of(field)) == 0
}

// excluded appends an address or a prefix.
func (e *fieldErrors) excluded(to []netip.Prefix, field, text string) []netip.Prefix {
	if a, err := parseAddr(text); err == nil {
		return append(to, netip.PrefixFrom(a, a.BitLen()))
	}
	p, err := parsePrefix(text)
	if err != nil {
		e.add(field, err.Error())
		return to
	}
	return append(to, p)
}
