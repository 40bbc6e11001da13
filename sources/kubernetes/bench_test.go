// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
)

// BenchmarkList_10000Pods decodes a listing of pods with 1,000 label sets, each
// of some 3 kB of which no table needs much.
func BenchmarkList_10000Pods(b *testing.B) {
	const count = 10000
	var list bytes.Buffer
	list.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`)
	padding := fmt.Sprintf("%02500d", 7)
	for i := range count {
		if i > 0 {
			list.WriteByte(',')
		}
		fmt.Fprintf(&list, `{"metadata":{"name":"web-%d","namespace":"shop","uid":"%036d","resourceVersion":"%d","labels":{"app":"app-%d","pod-template-hash":"x%d"},"annotations":{"a":"%s"}},"spec":{"nodeName":"node-%d","serviceAccountName":"default","containers":[{"name":"c","image":"registry.example/app:1","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}]}]},"status":{"phase":"Running","podIP":"10.%d.%d.%d","podIPs":[{"ip":"10.%d.%d.%d"}]}}`,
			i, i, i, i%1000, i, padding, i%100, i>>16, i>>8&255, i&255, i>>16, i>>8&255, i&255)
	}
	list.WriteString("]}")
	var pods *objects.Kind
	for _, k := range objects.Kinds(objects.EndpointsKubernetes) {
		if k.Resource == "pods" {
			pods = k
		}
	}
	b.SetBytes(int64(list.Len()))
	var kept []*itemList
	for b.Loop() {
		l, err := decodeList(pods, list.Bytes())
		require.NoError(b, err)
		require.Len(b, l.Items, count)
		kept = append(kept[:0], l)
	}
	b.ReportMetric(count*float64(b.N)/b.Elapsed().Seconds(), "pods/s")
	runtime.KeepAlive(kept)
}
