// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadManifest(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
		err        string
	}{
		{"one", "apiVersion: v1\nkind: Pod\n", []string{"document 1 (line 1): v1 Pod"}, ""},
		{"separators", "# comment\n---\n# only\n--- # more\napiVersion: v1\nkind: Pod\n---\nkind: A\napiVersion: b/v1\n---\n",
			[]string{"document 3 (line 4): v1 Pod", "document 4 (line 7): b/v1 A"}, ""},
		{"leading separator", "---\napiVersion: v1\nkind: Pod\ndata: |\n  ---\n  x\n", []string{"document 1 (line 1): v1 Pod"}, ""},
		{"windows", "apiVersion: v1\r\nkind: Pod\r\n---\r\napiVersion: v1\r\nkind: Node\r\n", []string{"document 1 (line 1): v1 Pod", "document 2 (line 3): v1 Node"}, ""},
		{"json", `{"apiVersion": "v1", "kind": "Pod"}`, []string{"document 1 (line 1): v1 Pod"}, ""},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node}]}\n",
			[]string{"document 1 (line 1): v1 Pod", "document 1 (line 1): v1 Node"}, ""},
		{"empty", "", nil, ""},
		{"syntax", "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: [\n", nil, "document 2 (line 3): yaml: line 5: did not find expected node content"},
		{"duplicate key", "apiVersion: v1\nkind: Pod\nkind: Pod\n", nil, "document 1 (line 1): yaml: unmarshal errors:\n  line 3: key \"kind\" already set in map"},
		{"text", "hello", nil, "document 1 (line 1): is no object"},
		{"no kind", "apiVersion: v1\n", nil, "document 1 (line 1): kind: required"},
		{"no version", "kind: Pod\n", nil, "document 1 (line 1): apiVersion: required"},
		{"kind of a wrong type", "apiVersion: v1\nkind: [Pod]\n", nil, "document 1 (line 1): kind: must not be of type array"},
		{"item", "apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n", nil, "document 1 (line 1): items[0]: apiVersion: required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			docs, err := ReadManifest([]byte(test.text))
			if test.err != "" {
				require.EqualError(t, err, test.err)
				return
			}
			require.NoError(t, err)
			var got []string
			for _, d := range docs {
				got = append(got, fmt.Sprintf("%s: %s %s", d, d.APIVersion, d.Kind))
			}
			require.Equal(t, test.want, got)
		})
	}
}

func FuzzReadManifest(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := ReadManifest(data)
		if err != nil {
			return
		}
		for _, d := range docs {
			require.NotEmpty(t, d.Kind)
			require.NotEmpty(t, d.APIVersion)
			for _, k := range append(Kinds(EndpointsCilium), podKind()) {
				_, err := k.Decode(d.JSON)
				require.NoError(t, err) // it is an object
			}
		}
	})
}
