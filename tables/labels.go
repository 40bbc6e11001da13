// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels are the labels of pods, each key once and in order. There may be as many
// of them as pods, and a map of a few entries takes five times the memory.
type Labels []Label

// Label is a key with its value.
type Label struct{ Key, Value string }

var _ labels.Labels = Labels{}

// NewLabels returns the labels of a set.
func NewLabels(set labels.Set) Labels {
	l := make(Labels, 0, len(set))
	for k, v := range set {
		l = append(l, Label{k, v})
	}
	slices.SortFunc(l, func(a, b Label) int { return strings.Compare(a.Key, b.Key) })
	return l
}

// Set returns the labels as a set.
func (l Labels) Set() labels.Set {
	set := make(labels.Set, len(l))
	for _, label := range l {
		set[label.Key] = label.Value
	}
	return set
}

// Lookup implements [labels.Labels].
func (l Labels) Lookup(key string) (value string, found bool) {
	i, found := slices.BinarySearchFunc(l, key, func(label Label, key string) int { return strings.Compare(label.Key, key) })
	if !found {
		return "", false
	}
	return l[i].Value, true
}

// Has implements [labels.Labels].
func (l Labels) Has(key string) bool { _, has := l.Lookup(key); return has }

// Get implements [labels.Labels].
func (l Labels) Get(key string) string { value, _ := l.Lookup(key); return value }

// String is as in app=web,tier=front.
func (l Labels) String() string { return l.Set().String() }

// MarshalJSON implements [json.Marshaler]: as an object.
func (l Labels) MarshalJSON() ([]byte, error) { return json.Marshal(l.Set()) }

// UnmarshalJSON implements [json.Unmarshaler], for clients of the agent.
func (l *Labels) UnmarshalJSON(data []byte) error {
	var set labels.Set
	if err := json.Unmarshal(data, &set); err != nil {
		return err
	}
	*l = NewLabels(set)
	return nil
}

// MarshalYAML implements the interface of YAML, likewise.
func (l Labels) MarshalYAML() (any, error) { return l.Set(), nil }
