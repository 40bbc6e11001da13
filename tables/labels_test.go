// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
)

func TestLabels(t *testing.T) {
	set := labels.Set{"tier": "front", "app": "web", "empty": ""}
	l := NewLabels(set)
	require.Equal(t, Labels{{"app", "web"}, {"empty", ""}, {"tier", "front"}}, l)
	require.Equal(t, set, l.Set())
	require.Equal(t, set.String(), l.String())
	for _, key := range []string{"app", "empty", "tier", "a", "none", "z"} {
		value, found := set[key]
		got, has := l.Lookup(key)
		require.Equal(t, found, has, key)
		require.Equal(t, value, got, key)
		require.Equal(t, found, l.Has(key), key)
		require.Equal(t, value, l.Get(key), key)
	}
	text, err := json.Marshal(l)
	require.NoError(t, err)
	require.JSONEq(t, `{"app": "web", "empty": "", "tier": "front"}`, string(text))
	require.Empty(t, NewLabels(nil))
	require.False(t, Labels(nil).Has("app"))
}

// Labels are an object in JSON, and the same again for who reads it.
func TestLabelsInJSON(t *testing.T) {
	for text, want := range map[string]Labels{
		`{}`:                       {},
		`{"app":"web","tier":"a"}`: {{"app", "web"}, {"tier", "a"}},
	} {
		require.Equal(t, want, NewLabels(want.Set()))
		data, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, text, string(data))
		var got Labels
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, want, got)
	}
	var wrong Labels
	require.Error(t, json.Unmarshal([]byte(`["app"]`), &wrong))
}
