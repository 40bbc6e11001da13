// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// maxGateways bounds the gateways of one policy.
const maxGateways = 64

type egressPolicy struct {
	object
	Spec struct {
		Selectors        []egressSelector `json:"selectors"`
		DestinationCIDRs []string         `json:"destinationCIDRs"`
		ExcludedCIDRs    []string         `json:"excludedCIDRs"`
		EgressGateway    *egressGateway   `json:"egressGateway"`
		EgressGateways   []egressGateway  `json:"egressGateways"`
	} `json:"spec"`
}

type egressSelector struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       *metav1.LabelSelector `json:"podSelector"`
	NodeSelector      *metav1.LabelSelector `json:"nodeSelector"`
}

type egressGateway struct {
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
	Interface    string                `json:"interface"`
	EgressIP     string                `json:"egressIP"`
}

func egressPolicies(o *egressPolicy, name tables.Name, errs *fieldErrors) []*tables.EgressPolicy {
	p := &tables.EgressPolicy{Name: name.Name, UID: o.Metadata.UID, Created: o.created(errs), Generation: o.Metadata.Generation}
	for i, s := range o.Spec.Selectors {
		if selector, ok := s.parse(fmt.Sprintf("spec.selectors[%d]", i), errs); ok {
			p.Selectors = append(p.Selectors, selector)
		}
	}
	if len(o.Spec.Selectors) == 0 {
		errs.add("spec.selectors", "required")
	}
	p.Destinations = errs.prefixes("spec.destinationCIDRs", o.Spec.DestinationCIDRs)
	if len(o.Spec.DestinationCIDRs) == 0 {
		errs.add("spec.destinationCIDRs", "required")
	}
	p.Excluded = errs.prefixes("spec.excludedCIDRs", o.Spec.ExcludedCIDRs)
	p.Gateways = withPool(o.gateways(errs), o.Metadata.Annotations.EgressIPPool, errs)
	annotations := o.Metadata.Annotations
	p.Bandwidth = bandwidth(tables.BandwidthAnnotation, annotations.Bandwidth, errs)
	p.PodBandwidth = bandwidth(tables.PodBandwidthAnnotation, annotations.PodBandwidth, errs)
	p.Errors = *errs
	return one(p)
}

// parse returns the selector of an item, unless some part of it is wrong: with
// that part left out it would select more.
func (s *egressSelector) parse(field string, errs *fieldErrors) (tables.EgressSelector, bool) {
	var out tables.EgressSelector
	if s.NamespaceSelector == nil && s.PodSelector == nil {
		errs.add(field, "needs a namespaceSelector or a podSelector")
	}
	out.Namespaces = selectorText(field+".namespaceSelector", s.NamespaceSelector, errs)
	out.Pods = selectorText(field+".podSelector", withoutSources(s.PodSelector), errs)
	out.Nodes = selectorText(field+".nodeSelector", withoutSources(s.NodeSelector), errs)
	refuseChurnLabels(field+".podSelector", out.Pods, errs)
	return out, len(errs.of(field)) == 0
}

// refuseChurnLabels names the labels of a selector that endpoints do not keep:
// it could only be evaluated wrongly.
func refuseChurnLabels(field, selector string, errs *fieldErrors) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return // it is canonical, or has an error already
	}
	requirements, _ := parsed.Requirements()
	for _, r := range requirements {
		if slices.Contains(churnLabels, r.Key()) {
			errs.add(field, fmt.Sprintf("label %s changes with each rollout and cannot be selected on", r.Key()))
		}
	}
}

// gateways returns the items of egressGateways, or the one egressGateway if
// there are none.
func (o *egressPolicy) gateways(errs *fieldErrors) []tables.GatewaySpec {
	const single, list = "spec.egressGateway", "spec.egressGateways"
	items := o.Spec.EgressGateways
	switch {
	case len(items) > 0:
	case len(errs.of(list)) > 0: // it would have counted, if it were right
		return one(tables.GatewaySpec{Error: errs.of(list).String()})
	case o.Spec.EgressGateway != nil:
		return one(o.Spec.EgressGateway.parse(single, errs))
	default:
		errs.add(single, "required, unless there are egressGateways")
		return one(tables.GatewaySpec{Error: errs.of(single).String()})
	}
	specs := make([]tables.GatewaySpec, min(len(items), maxGateways))
	for i := range specs {
		specs[i] = items[i].parse(fmt.Sprintf("%s[%d]", list, i), errs)
	}
	if len(items) > maxGateways {
		errs.add(list, fmt.Sprintf("has %d items, of which the first %d are used", len(items), maxGateways))
	}
	return specs
}

func (g *egressGateway) parse(field string, errs *fieldErrors) tables.GatewaySpec {
	spec := tables.GatewaySpec{Interface: g.Interface}
	if g.NodeSelector == nil {
		errs.add(field+".nodeSelector", "required")
	}
	spec.Nodes = selectorText(field+".nodeSelector", withoutSources(g.NodeSelector), errs)
	if g.EgressIP != "" {
		ip, err := parseAddr(g.EgressIP)
		if err != nil {
			errs.add(field+".egressIP", err.Error())
		}
		spec.EgressIP = ip
		if g.Interface != "" {
			errs.add(field+".interface", "excludes egressIP")
		}
	}
	spec.Error = errs.of(field).String()
	return spec
}

// Limits of bandwidth, in bits a second. The programs count whole nanoseconds for each packet:
// beyond the maximum a small one takes none.
const (
	minBandwidth = 1e3
	maxBandwidth = 1e12
)

// bitUnits are the units of bandwidths. They are parsed here, as resource.ParseQuantity takes
// minutes for one as 1e999999999.
var bitUnits = map[string]float64{"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

// bandwidth returns the limit that an annotation has, in bits a second. Without a value, and with
// one that is no such limit, there is none.
func bandwidth(annotation, value string, errs *fieldErrors) tables.Bandwidth {
	if value == "" {
		return 0
	}
	field := "metadata.annotations[" + annotation + "]"
	unit := strings.TrimLeft(value, "0123456789.")
	n, err := strconv.ParseFloat(strings.TrimSuffix(value, unit), 64)
	factor, known := bitUnits[unit]
	if err != nil || !known {
		errs.add(field, quoted(value, "is no number of bits a second as 100M or 1.5G").Error())
		return 0
	}
	if n *= factor; n < minBandwidth || n > maxBandwidth {
		errs.add(field, quoted(value, "must be from 1k to 1T bits a second").Error())
		return 0
	}
	return tables.Bandwidth(n)
}

// selectorText returns the canonical text of a selector. No selector selects
// everything, as an empty one does.
func selectorText(field string, s *metav1.LabelSelector, errs *fieldErrors) string {
	if s == nil {
		return ""
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		errs.add(field, err.Error())
		return ""
	}
	return selector.String()
}

// withoutSources takes from the keys of a selector the label sources that Cilium
// allows there: k8s, and any, which includes it.
func withoutSources(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	out := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		bare, value := withoutSource(key), s.MatchLabels[key]
		if other, taken := out.MatchLabels[bare]; taken && other != value {
			out.MatchExpressions = append(out.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: bare, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
			continue
		}
		out.MatchLabels[bare] = value
	}
	for _, e := range s.MatchExpressions {
		e.Key = withoutSource(e.Key)
		out.MatchExpressions = append(out.MatchExpressions, e)
	}
	return out
}

func withoutSource(key string) string {
	for _, source := range []string{"k8s:", "any:"} {
		if bare, ok := strings.CutPrefix(key, source); ok {
			return bare
		}
	}
	return key
}
