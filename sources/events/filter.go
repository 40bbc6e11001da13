// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Filter chooses events: those of any of the kinds, for any of the reasons, and
// from or to any of the pods. A list that is empty chooses all.
type Filter struct {
	Kinds   []bpf.EventKind
	Reasons []bpf.Reason
	Pods    []Pod
}

var kinds = map[string]bpf.EventKind{string(tables.EventDrop): bpf.EventDrop, string(tables.EventFlow): bpf.EventFlow}

// ParseFilter returns the filter of a request. Reasons are those
// of [Reasons], in any case and with dashes for blanks.
func ParseFilter(kindTexts, reasons, pods []string) (f Filter, err error) {
	for _, text := range kindTexts {
		kind, ok := kinds[text]
		if !ok {
			return Filter{}, fmt.Errorf("unknown kind %q: want drop or flow", text)
		}
		f.Kinds = append(f.Kinds, kind)
	}
	for _, text := range reasons {
		reason, ok := parseReason(text)
		if !ok {
			return Filter{}, fmt.Errorf("unknown reason %q: want one of: %s", text, strings.Join(Reasons(), ", "))
		}
		f.Reasons = append(f.Reasons, reason)
	}
	for _, text := range pods {
		pod, err := ParsePod(text)
		if err != nil {
			return Filter{}, err
		}
		f.Pods = append(f.Pods, pod)
	}
	return f, nil
}

// Reasons returns the names of all reasons that an event can have.
func Reasons() (names []string) {
	for r := range bpf.ReasonCount {
		if KnownReason(r) {
			names = append(names, r.String())
		}
	}
	return names
}

// KnownReason reports whether a number is that of a reason that an event can have.
func KnownReason(r bpf.Reason) bool {
	if r == bpf.ReasonEventLost {
		return false // is only counted
	}
	text, err := r.MarshalText()
	var parsed bpf.Reason
	return err == nil && parsed.UnmarshalText(text) == nil
}

func parseReason(text string) (bpf.Reason, bool) {
	wanted := strings.ReplaceAll(text, "-", " ")
	for r := range bpf.ReasonCount {
		if KnownReason(r) && strings.EqualFold(r.String(), wanted) {
			return r, true
		}
	}
	return 0, false
}

// wants reports whether the filter chooses what the kernel reports, as far as
// that alone tells.
func (f *Filter) wants(e *bpf.Event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, e.Reason))
}

// matches reports whether one of the pods is concerned.
func (f *Filter) matches(e *tables.Event) bool {
	return len(f.Pods) == 0 || slices.ContainsFunc(f.Pods, func(p Pod) bool { return p.matches(e) })
}

// flows reports whether the filter can choose a new flow.
func (f *Filter) flows() bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, bpf.EventFlow)) &&
		(len(f.Reasons) == 0 || slices.ContainsFunc(f.Reasons, func(r bpf.Reason) bool { return !r.Drop() }))
}

// String returns the filter as the query of a URL that asks for it, unescaped.
func (f *Filter) String() string {
	var parts []string
	for name, kind := range kinds {
		if slices.Contains(f.Kinds, kind) {
			parts = append(parts, "kind="+name)
		}
	}
	slices.Sort(parts)
	for _, r := range f.Reasons {
		parts = append(parts, "reason="+r.String())
	}
	for _, p := range f.Pods {
		parts = append(parts, "pod="+p.text)
	}
	return strings.Join(parts, "&")
}

// Pod chooses the pods of an event, or its addresses.
type Pod struct {
	text   string
	prefix netip.Prefix // of addresses, if it is valid; otherwise text is of names
}

var podName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*(/[a-z0-9.-]*)?)?$`)

// ParsePod returns what chooses pods by namespace/name, the beginning of that,
// the beginning of a name in any namespace, an address, or a prefix of addresses.
func ParsePod(text string) (Pod, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.WithZone("").Unmap()
		return Pod{text: text, prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return Pod{text: text, prefix: prefix.Masked()}, nil
	}
	if !podName.MatchString(text) {
		return Pod{}, fmt.Errorf("unknown pod %q: want namespace/name, the beginning of it or of a name, an address, or a prefix", text)
	}
	return Pod{text: text}, nil
}

func (p Pod) matches(e *tables.Event) bool {
	if p.prefix.IsValid() {
		return p.prefix.Contains(e.Source.Addr) || p.prefix.Contains(e.Destination.Addr)
	}
	return p.named(e.Source.Pod) || p.named(e.Destination.Pod) || p.named(e.Pod)
}

func (p Pod) named(pod string) bool {
	if !strings.Contains(p.text, "/") {
		_, pod, _ = strings.Cut(pod, "/")
	}
	return pod != "" && strings.HasPrefix(pod, p.text)
}
