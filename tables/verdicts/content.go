// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// precedence decides among contributions: the highest wins.
type precedence uint8

const (
	byDefault precedence = iota
	byAllow
	byDeny
)

// contribution is what one rule says of the traffic under a key.
type contribution struct {
	precedence precedence
	deny       bool
	rule       tables.RuleID // zero for a default without a rule
}

// contributions are all that rules say about a class in a direction, by keys without set.
type contributions map[bpf.VerdictKey][]contribution

// anyTraffic is the key of all traffic.
var anyTraffic = bpf.VerdictKeyOf(0, 0, 0, 0)

// maxNamedRules is how many rules a verdict names that decide together. Any number may, and for any
// number of keys.
const maxNamedRules = 16

// put adds what a rule says of a key, unless many rules say it already.
func (c contributions) put(key bpf.VerdictKey, by contribution) {
	same := 0
	for _, other := range c[key] {
		if other.precedence == by.precedence {
			same++
		}
	}
	if same < maxNamedRules {
		c[key] = append(c[key], by)
	}
}

// add adds a rule, with the peer's numbers for names of ports.
func (c contributions) add(st *statement, ports []tables.NamedPort) {
	for _, key := range st.keys {
		c.put(key, st.contribution)
	}
	c.addNamed(st, ports)
}

// addNamed adds only what a rule says about ports by name.
func (c contributions) addNamed(st *statement, ports []tables.NamedPort) {
	for _, p := range ports {
		if st.names(p) {
			c.put(bpf.VerdictKeyOf(0, p.Protocol, p.Port, 16), st.contribution)
		}
	}
}

// clone returns a copy that can be changed independently.
func (c contributions) clone() contributions {
	d := make(contributions, len(c))
	for key, by := range c {
		d[key] = slices.Clip(by)
	}
	return d
}

// content is the content of a verdict set.
type content struct {
	verdicts []tables.Verdict // in order of key, without set
	digest   bpf.Digest
}

// content returns the smallest list of verdicts in which the longest key around any traffic gives
// the result of the contributions with the highest precedence. The order of contributions decides
// at most which of many rules are named.
func (c contributions) content() *content {
	keys := slices.SortedFunc(maps.Keys(c), compareKeys)
	says := &content{verdicts: make([]tables.Verdict, 0, len(keys))}
	emitted := make(map[bpf.VerdictKey]int, len(keys))
	for _, key := range keys { // shorter ones come first
		v := c.decide(key)
		if at, found := nearest(emitted, key); found && says.verdicts[at].Value == v.Value &&
			slices.Equal(says.verdicts[at].Rules, v.Rules) {
			continue
		}
		emitted[key] = len(says.verdicts)
		says.verdicts = append(says.verdicts, v)
	}
	says.digest = digest(says.verdicts)
	return says
}

// decide returns the verdict of a key, even if a shorter key already gives it.
func (c contributions) decide(key bpf.VerdictKey) tables.Verdict {
	v, best := tables.Verdict{Key: key}, byDefault
	for around := range Around(key) {
		for _, by := range c[around] {
			if by.precedence > best {
				best, v.Rules = by.precedence, nil
			}
			if by.precedence < best {
				continue
			}
			v.Value.Deny = asByte(by.deny)
			if by.rule != (tables.RuleID{}) {
				v.Rules = append(v.Rules, by.rule)
			}
		}
	}
	v.Value.Default = asByte(best == byDefault)
	slices.SortFunc(v.Rules, tables.RuleID.Compare)
	v.Rules = slices.Compact(v.Rules)
	v.Rules = slices.Clone(v.Rules[:min(len(v.Rules), maxNamedRules)])
	v.Value.Cookie = tables.CookieOf(v.Rules)
	return v
}

func asByte(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

// nearest returns the emitted verdict with the longest key around another.
func nearest(emitted map[bpf.VerdictKey]int, key bpf.VerdictKey) (at int, found bool) {
	for around := range Around(key) {
		if at, found = emitted[around]; found {
			return at, true
		}
	}
	return 0, false
}

// compareKeys orders keys of a set as the table does.
func compareKeys(a, b bpf.VerdictKey) int {
	return cmp.Or(
		cmp.Compare(a.PrefixLen, b.PrefixLen), cmp.Compare(a.Protocol, b.Protocol),
		bytes.Compare(a.Port[:], b.Port[:]),
	)
}

// digest identifies verdicts, with the rules that decide.
func digest(verdicts []tables.Verdict) bpf.Digest {
	var b []byte
	for _, v := range verdicts {
		b = append(b, byte(v.Key.PrefixLen), v.Key.Protocol, v.Key.Port[0], v.Key.Port[1])
		b = append(b, v.Value.Deny, v.Value.Default)
		b = binary.BigEndian.AppendUint32(b, uint32(len(v.Rules)))
		for _, id := range v.Rules {
			b = append(append(b, id.Policy.Key()...), 0)
			b = binary.BigEndian.AppendUint32(b, uint32(id.Rule))
			b = append(b, byte(id.Direction))
			b = binary.BigEndian.AppendUint32(b, uint32(id.Item))
			b = append(append(b, id.Field...), 0)
		}
	}
	sum := sha256.Sum256(b)
	return bpf.Digest(sum[:16])
}
