// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// SubjectSignature identifies the rules that apply to a pod as their subject: policies treat two
// pods with the same signature in the same way. It is empty if no policy selects the pod.
func (w *World) SubjectSignature(addr netip.Addr) string {
	pod := w.Pod(addr)
	if w.Enforcement == "never" {
		return ""
	}
	parts := map[string]bool{}
	if w.Enforcement == "always" {
		parts["every pod"] = true
	}
	for _, policy := range w.Policies {
		for i := range policy.Rules {
			if rule := &policy.Rules[i]; w.selects(rule.Subject, pod) {
				parts[rule.Subject.String()] = true
			}
		}
	}
	if len(parts) > 0 {
		w.addPorts(
			parts, pod, func(r *tables.PolicyRule) []tables.PolicyTraffic { return r.Ingress.Traffic },
		)
	}
	return join(parts)
}

// PeerSignature identifies the rules that match an address as a peer: policies treat two addresses
// with the same signature in the same way.
func (w *World) PeerSignature(addr netip.Addr) string {
	at := w.party(addr)
	parts := map[string]bool{}
	for _, e := range []tables.PolicyEntity{
		tables.EntityWorld, tables.EntityWorldIPv4, tables.EntityWorldIPv6, tables.EntityCluster,
		tables.EntityHost, tables.EntityRemoteNode,
	} {
		parts[string(e)] = w.isEntity(e, at, addr)
	}
	for _, policy := range w.Policies {
		for i := range policy.Rules {
			rule := &policy.Rules[i]
			for _, item := range slices.Concat(rule.Ingress.Traffic, rule.Egress.Traffic) {
				for _, peer := range item.Peers {
					if !peer.MatchesEverything() && w.isPeer(&peer, addr) {
						parts[peer.String()] = true
					}
				}
			}
		}
	}
	if at.pod != nil {
		w.addPorts(
			parts, at.pod, func(r *tables.PolicyRule) []tables.PolicyTraffic { return r.Egress.Traffic },
		)
	}
	return join(parts)
}

// addPorts adds the ports of a pod whose name is in some items of policies.
func (w *World) addPorts(
	parts map[string]bool, pod *tables.Endpoint, items func(*tables.PolicyRule) []tables.PolicyTraffic,
) {
	for _, policy := range w.Policies {
		for i := range policy.Rules {
			for _, item := range items(&policy.Rules[i]) {
				for _, port := range item.Ports {
					for _, named := range pod.LabelSet.NamedPorts {
						if port.Name != "" && port.Name == named.Name && port.Protocol == named.Protocol {
							parts[tables.PolicyPort{
								Protocol: named.Protocol, First: named.Port, Last: named.Port,
							}.String()+" is "+named.Name] = true
						}
					}
				}
			}
		}
	}
}

func join(parts map[string]bool) string {
	var list []string
	for text, is := range parts {
		if is {
			list = append(list, text)
		}
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}
