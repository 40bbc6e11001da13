// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// Block is a prefix without its exceptions.
type Block struct {
	Prefix netip.Prefix   `json:"prefix"`
	Except []netip.Prefix `json:"except,omitempty"` // in order
}

// Contains reports whether a prefix is inside the block, and in none of its exceptions.
func (b Block) Contains(p netip.Prefix) bool {
	return contains(b.Prefix, p) && !b.excepts(p)
}

// excepts reports whether a prefix is in one of the exceptions, which may be many.
func (b Block) excepts(p netip.Prefix) bool {
	for bits := p.Bits(); len(b.Except) > 0 && bits >= 0; bits-- {
		around := netip.PrefixFrom(p.Addr(), bits).Masked()
		if _, found := slices.BinarySearchFunc(b.Except, around, netip.Prefix.Compare); found {
			return true
		}
	}
	return false
}

// Compare orders blocks by prefix, then by exceptions.
func (b Block) Compare(o Block) int {
	return cmp.Or(
		b.Prefix.Compare(o.Prefix), slices.CompareFunc(b.Except, o.Except, netip.Prefix.Compare),
	)
}

// Equal reports whether two blocks are the same.
func (b Block) Equal(o Block) bool { return b.Compare(o) == 0 }

func contains(around, p netip.Prefix) bool {
	return around.Bits() <= p.Bits() && around.Contains(p.Addr())
}

// SelectorSpec is a set of peers in a rule: all prefixes of a rule are one selector, and each other
// peer is one of its own.
type SelectorSpec struct {
	Text string `json:"text"` // canonical: selectors with the same text are one

	// Peers are several only if all are of [PeerCIDR].
	Peers []PolicyPeer `json:"peers"`

	// Foreign is set if its policies are in namespaces, and it tells pods of other namespaces than
	// theirs apart. Two selectors with the same text may differ by it.
	Foreign bool `json:"foreign,omitempty"`
}

// IsFamily reports whether a peer is all addresses of a family, which all addresses of a member
// match or none.
func IsFamily(p PolicyPeer) bool {
	return p.Kind == PeerCIDR && p.CIDR.Bits() == 0 && len(p.Except) == 0
}

// Digest identifies the selector.
func (s SelectorSpec) Digest() bpf.Digest {
	text := []byte(s.Text)
	if s.Foreign {
		text = append(text, 0)
	}
	sum := sha256.Sum256(text)
	return bpf.Digest(sum[:16])
}

// SelectorSpecs returns the selectors that peers of one rule stand for, each once, in order
// of text. Peers that match everything or nothing stand for none.
func SelectorSpecs(peers []PolicyPeer) []SelectorSpec {
	var specs []SelectorSpec
	var cidrs []SelectorSpec // there may be very many
	for _, p := range peers {
		if p.MatchesEverything() || p.MatchesNothing() {
			continue
		}
		spec := SelectorSpec{Text: p.String(), Peers: []PolicyPeer{p}}
		if p.Kind == PeerCIDR && !IsFamily(p) {
			cidrs = append(cidrs, spec)
		} else {
			specs = append(specs, spec)
		}
	}
	if len(cidrs) > 0 {
		all, texts := SelectorSpec{}, make([]string, 0, len(cidrs))
		for _, spec := range inOrder(cidrs) {
			all.Peers, texts = append(all.Peers, spec.Peers...), append(texts, spec.Text)
		}
		all.Text = strings.Join(texts, ", ")
		specs = append(specs, all)
	}
	return inOrder(specs)
}

// inOrder returns selectors in order of text, each once.
func inOrder(specs []SelectorSpec) []SelectorSpec {
	slices.SortFunc(specs, func(a, b SelectorSpec) int { return strings.Compare(a.Text, b.Text) })
	return slices.CompactFunc(specs, func(a, b SelectorSpec) bool { return a.Text == b.Text })
}

// IsForeign says what [SelectorSpec.Foreign] is of a selector of a policy in a namespace, which is
// empty for one that is cluster-wide. Whether all prefixes select pods is a matter of flags.
func (s SelectorSpec) IsForeign(
	namespace string, prefixesSelectPods bool, parse func(EgressSelector) *PodMatcher,
) bool {
	return namespace != "" && slices.ContainsFunc(s.Peers, func(p PolicyPeer) bool {
		switch p.Kind {
		case PeerPods:
			return parse(p.Pods).dividesOthers(namespace)
		case PeerCIDR, PeerCIDRGroups:
			return !IsFamily(p) && (prefixesSelectPods || p.MatchesPods)
		case PeerServices:
			return true
		}
		return false
	})
}

// Selector is an expression by which live rulesets select peers. It gets a new number each time
// that it comes into use.
type Selector struct {
	Life         `yaml:",inline"`
	SelectorSpec `yaml:",inline"`

	// Namespace is that of the ruleset that first needed the selector: its prefixes count for
	// the namespace's share.
	Namespace string `json:"namespace,omitempty"`

	// What the peers come to, with the objects that they name as they are now: pods by any
	// of some labels, addresses in any of some blocks, an entity, or nodes by labels.
	Pods   []EgressSelector `json:"pods,omitempty"`
	Blocks []Block          `json:"blocks,omitempty"` // in order of prefix
	Entity PolicyEntity     `json:"entity,omitempty"`
	Family uint8            `json:"family,omitempty"` // of a prefix of all its addresses

	// Whether blocks or family select addresses of pods and of nodes, too.
	MatchesPods  bool `json:"matchesPods,omitempty"`
	MatchesNodes bool `json:"matchesNodes,omitempty"`

	// NoRoom says that the objects have more prefixes by now than there is room for: until the
	// rulesets that name the selector are gone, it stands for what it did before.
	NoRoom string `json:"noRoom,omitempty"`

	matchers []*PodMatcher   // of Pods
	nodes    labels.Selector // of nodes
	prefixes []netip.Prefix  // of Blocks
	lengths  []int           // of the prefixes of Blocks but for exceptions, each once
}

// NewSelector returns a selector in use. It fails if a label selector does not parse.
func NewSelector(s Selector) (*Selector, error) {
	for _, pods := range s.Pods {
		m, err := NewPodMatcher(pods)
		if err != nil {
			return nil, err
		}
		s.matchers = append(s.matchers, m)
	}
	if peer := s.Peers[0]; peer.Kind == PeerNodes {
		var err error
		if s.nodes, err = labels.Parse(peer.Labels); err != nil {
			return nil, fmt.Errorf("parse selector %q: %w", peer.Labels, err)
		}
	}
	s.prefixes = prefixesOf(s.Blocks)
	s.lengths = nil
	for _, b := range s.Blocks {
		if !slices.Contains(s.lengths, b.Prefix.Bits()) {
			s.lengths = append(s.lengths, b.Prefix.Bits())
		}
	}
	return &s, nil
}

// MatchesLabels reports whether the selector selects pods with a label set. The namespace is
// nil while there is no object for it.
func (s *Selector) MatchesLabels(set *LabelSet, namespace *Namespace) bool {
	return slices.ContainsFunc(s.matchers,
		func(m *PodMatcher) bool { return m.Matches(set, namespace) })
}

// MatchesNode reports whether the selector selects nodes by labels, and this one.
func (s *Selector) MatchesNode(n *Node) bool {
	return s.nodes != nil && s.nodes.Matches(n.Labels)
}

// SameResolution reports whether two versions of a selector stand for the same peers.
func (s *Selector) SameResolution(o *Selector) bool {
	return slices.Equal(s.Pods, o.Pods) && slices.EqualFunc(s.Blocks, o.Blocks, Block.Equal) &&
		s.Entity == o.Entity && s.Family == o.Family &&
		s.MatchesPods == o.MatchesPods && s.MatchesNodes == o.MatchesNodes
}

// Anchors returns what label sets must have one of to be selected: see
// [LabelSet.Anchors].
func (s *Selector) Anchors() []string {
	var anchors []string
	for _, m := range s.matchers {
		if a := m.Anchor(); !slices.Contains(anchors, a) {
			anchors = append(anchors, a)
		}
	}
	return anchors
}

// Prefixes returns the prefixes that the blocks name, including exceptions, each once and in order:
// addresses inside the same prefixes of these all match, or none does.
func (s *Selector) Prefixes() []netip.Prefix { return s.prefixes }

// Names reports whether a prefix is among [Selector.Prefixes].
func (s *Selector) Names(p netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(s.prefixes, p, netip.Prefix.Compare)
	return found
}

func prefixesOf(blocks []Block) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, b := range blocks {
		prefixes = append(append(prefixes, b.Prefix), b.Except...)
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// Contains reports whether a prefix is in one of the blocks. It checks only blocks whose prefix
// contains it, of which there are few.
func (s *Selector) Contains(p netip.Prefix) bool {
	for _, bits := range s.lengths {
		if bits > p.Bits() {
			continue
		}
		around := netip.PrefixFrom(p.Addr(), bits).Masked()
		at, found := slices.BinarySearchFunc(s.Blocks, around,
			func(b Block, p netip.Prefix) int { return b.Prefix.Compare(p) })
		for ; found && at < len(s.Blocks) && s.Blocks[at].Prefix == around; at++ {
			if s.Blocks[at].Contains(p) {
				return true
			}
		}
	}
	return false
}

// TableHeader implements [statedb.TableWritable].
func (*Selector) TableHeader() []string {
	return []string{"Number", "Expression", "Foreign", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (s *Selector) TableRow() []string {
	return []string{number(s.Number), s.Text, trueOrDash(s.Foreign), trueOrDash(s.Undesired)}
}

var (
	selectorNumber = UniqueIndex("number", Uint32Keys,
		func(s *Selector) uint32 { return s.Number })
	selectorDigest = UniqueIndex("digest", DigestKeys,
		func(s *Selector) bpf.Digest { return s.Digest() })
	// What each label set must have to be selected: see [LabelSet.Anchors].
	selectorAnchor = IndexEach("anchor", StringKeys,
		func(s *Selector) []string { return s.Anchors() })
	selectorPrefix = IndexEach("prefix", ShortPrefixKeys,
		func(s *Selector) []netip.Prefix { return s.Prefixes() })
	// Kinds of peers that the other indexes do not find, or not completely.
	selectorKind = statedb.Index[*Selector, PeerKind]{
		Name:       "kind",
		FromKey:    func(k PeerKind) index.Key { return index.String(string(k)) },
		FromString: index.FromString,
		FromObject: func(s *Selector) index.KeySet {
			kind := s.Peers[0].Kind
			if kind == PeerPods || kind == PeerCIDR && s.Family == 0 {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.String(string(kind)))
		},
	}

	// SelectorByNumber queries a selector in use by its number.
	SelectorByNumber = selectorNumber.Query

	// SelectorByDigest queries the selector in use with a text.
	SelectorByDigest = selectorDigest.Query

	// SelectorsByAnchor queries the selectors that require something of label sets, or
	// [AnyAnchor].
	SelectorsByAnchor = selectorAnchor.Query

	// SelectorsByPrefix queries the selectors that name a prefix in a block or as an exception.
	SelectorsByPrefix = selectorPrefix.Query

	// SelectorsByKind queries the selectors of CIDR groups, services, nodes, entities, or, by
	// [PeerCIDR], of whole families.
	SelectorsByKind = selectorKind.Query
)

// NewSelectorTable creates the table of selectors in use.
var NewSelectorTable = Declare("selectors",
	selectorNumber,
	selectorDigest,
	selectorAnchor,
	selectorPrefix,
	selectorKind,
)
