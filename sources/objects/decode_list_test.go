// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A listing is its objects, also if some of them have mistakes.
func TestDecodeList(t *testing.T) {
	for _, second := range []string{`{"metadata":{"name":"b"},"status":{"podIP":"10.0.0.1"}}`, `{"metadata":{"name":"b","labels":7},"status":{"podIP":"10.0.0.1"}}`} {
		k := podKind()
		list, err := k.DecodeList([]byte(`{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"5","continue":"x"},"items":[{"metadata":{"name":"a"}},` + second + `,{}]}`))
		require.NoError(t, err)
		require.Equal(t, "5", list.ResourceVersion)
		require.Equal(t, "x", list.Continue)
		require.Len(t, list.Objects, 3)
		want, err := k.Decode([]byte(second))
		require.NoError(t, err)
		require.Equal(t, want, list.Objects[1])
		require.Equal(t, "a", list.Objects[0].Name.Name)
		require.Error(t, list.Objects[2].Err)
	}
	for _, bad := range []string{"", "[]", "null", "<html></html>",
		`{"apiVersion":"v1","kind":"PodList","items":{}}`, `{"apiVersion":"v1","kind":"PodList","items":[7]}`,
	} {
		_, err := podKind().DecodeList([]byte(bad))
		require.Error(t, err, bad)
	}
}

// An answer of another kind has no items of this one, and is no empty listing.
func TestDecodeListOfAnotherKind(t *testing.T) {
	status, err := (&metav1.Status{}).Marshal()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"none": {[]byte(`{}`), "the answer names no kind, want v1 PodList"},
		"a status": {
			[]byte(`{"apiVersion":"v1","kind":"Status","status":"Success"}`),
			"the answer is a v1 Status, not a v1 PodList",
		},
		"an error": {
			[]byte(`{"apiVersion":"v1","kind":"Status","message":"no backend"}`),
			"the answer is a v1 Status, not a v1 PodList: no backend",
		},
		"another list": {
			[]byte(`{"apiVersion":"v1","kind":"ConfigMapList","items":[]}`),
			"the answer is a v1 ConfigMapList, not a v1 PodList",
		},
		"of another group": {
			[]byte(`{"apiVersion":"metrics.k8s.io/v1","kind":"PodList","items":[]}`),
			"the answer is a metrics.k8s.io/v1 PodList, not a v1 PodList",
		},
		"a status in protobuf": {
			enveloped(t, "Status", status), "the answer is a v1 Status, not a v1 PodList",
		},
		"another list in protobuf": {
			enveloped(t, "ConfigMapList", listMessage("1", "")),
			"the answer is a v1 ConfigMapList, not a v1 PodList",
		},
		"an empty envelope": {[]byte("k8s\x00"), "the answer names no kind, want v1 PodList"},
	} {
		_, err := podKind().DecodeList(c.data)
		require.EqualError(t, err, c.want, name)
	}
	_, err = networkPolicyKind().DecodeList([]byte(`{"apiVersion":"v1","kind":"Status"}`))
	require.EqualError(t, err, "the answer is a v1 Status, not a networking.k8s.io/v1 NetworkPolicyList")
}
