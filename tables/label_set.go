// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/cilium/statedb/index"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// LabelSetID identifies a [LabelSet]: a digest of its contents, which can be computed from an
// endpoint alone.
type LabelSetID = bpf.Digest

// NamedPort is a container port with a name. A name may be that of several ports.
type NamedPort struct {
	Name     string `json:"name"`
	Protocol uint8  `json:"protocol"` // IP protocol number
	Port     uint16 `json:"port"`
}

// String is as in http=8080/6.
func (p NamedPort) String() string {
	return p.Name + "=" + strconv.Itoa(int(p.Port)) + "/" + strconv.Itoa(int(p.Protocol))
}

// NameText returns the name in the form http/tcp, as [PolicyPort.String] does.
func (p NamedPort) NameText() string {
	return PolicyPort{Name: p.Name, Protocol: p.Protocol}.String()
}

// Compare orders ports by name, protocol and number.
func (p NamedPort) Compare(o NamedPort) int {
	return cmp.Or(
		strings.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol), cmp.Compare(p.Port, o.Port),
	)
}

// LabelSet is what many pods share and selectors look at. The labels of the
// namespace and of the node are not part of it: they are joined when a
// selector is evaluated, so that relabeling a namespace touches its label
// sets, not its pods.
type LabelSet struct {
	ID             LabelSetID `json:"id"`
	Namespace      string     `json:"namespace"`
	ServiceAccount string     `json:"serviceAccount,omitempty"`
	// without labels that change with each rollout, such as pod-template-hash
	Labels     Labels      `json:"labels,omitempty"`
	NamedPorts []NamedPort `json:"namedPorts,omitempty"`
}

// NewLabelSet returns the label set with these contents.
func NewLabelSet(namespace, serviceAccount string, set labels.Set, ports []NamedPort) *LabelSet {
	sorted := NewLabels(set)
	return &LabelSet{
		NewLabelSetID(namespace, serviceAccount, sorted, ports), namespace, serviceAccount, sorted, ports,
	}
}

// NewLabelSetID returns the identity of the label set with these contents.
func NewLabelSetID(namespace, serviceAccount string, set Labels, ports []NamedPort) LabelSetID {
	h := sha256.New()
	text := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	text(namespace)
	text(serviceAccount)
	for _, label := range set {
		text(label.Key)
		text(label.Value)
	}
	// This separates labels from ports: a label key is never empty.
	text("")
	for _, p := range ports {
		text(p.Name)
		h.Write([]byte{p.Protocol, byte(p.Port >> 8), byte(p.Port)})
	}
	return LabelSetID(h.Sum(nil)[:16])
}

// NamespaceAnchor is the anchor of everything in a namespace. An anchor is what a
// selector can require of a label set: see [Selector.Anchors].
func NamespaceAnchor(namespace string) string { return "@" + namespace }

// LabelAnchor is the anchor of everything that has a label.
func LabelAnchor(key, value string) string { return key + "=" + value }

// HasAnchor reports whether the set has an anchor, or whether that is [AnyAnchor].
func (s *LabelSet) HasAnchor(anchor string) bool {
	if namespace, is := strings.CutPrefix(anchor, NamespaceAnchor("")); is {
		return namespace == s.Namespace
	}
	key, value, _ := strings.Cut(anchor, "=")
	has, found := s.Labels.Lookup(key)
	return anchor == AnyAnchor || found && has == value
}

// DigestKeys are keys of indexes by a digest.
var DigestKeys = KeysOf(digestKey, digestFromString)

func digestKey(d bpf.Digest) index.Key { return index.Key(d[:]) }

func digestFromString(s string) (index.Key, error) {
	var d bpf.Digest
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return nil, err
	}
	return digestKey(d), nil
}
