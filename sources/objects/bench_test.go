// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// typedPod returns a pod of the size that API servers deliver, most of which no table needs.
func typedPod(tb testing.TB, i int) *corev1.Pod {
	var p corev1.Pod
	require.NoError(tb, yaml.Unmarshal([]byte(webPod), &p))
	p.Name = fmt.Sprintf("web-%d", i)
	p.Labels["app"] = fmt.Sprintf("app-%d", i%5000)
	p.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("%01000d", i)}
	for c := range p.Spec.Containers {
		for e := range 20 {
			p.Spec.Containers[c].Env = append(p.Spec.Containers[c].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: "some value"})
		}
	}
	for v := range 4 {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("volume-%d", v),
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}}})
	}
	for _, c := range []corev1.PodConditionType{"Ready", "Initialized", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: "True"})
	}
	p.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: managed(tb, p.Spec)},
		{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: managed(tb, p.Status), Subresource: "status"},
	}
	return &p
}

// managed returns what says that all fields of an object are managed.
func managed(tb testing.TB, of any) *metav1.FieldsV1 {
	data, err := json.Marshal(of)
	require.NoError(tb, err)
	var tree map[string]any
	require.NoError(tb, json.Unmarshal(data, &tree))
	data, err = json.Marshal(managedFields(tree))
	require.NoError(tb, err)
	return metav1.NewFieldsV1(string(data))
}

func managedFields(of any) any {
	out := map[string]any{}
	switch of := of.(type) {
	case map[string]any:
		for key, value := range of {
			out["f:"+key] = managedFields(value)
		}
	case []any:
		for i, value := range of {
			out[fmt.Sprintf(`k:{"name":"%d"}`, i)] = managedFields(value)
		}
	}
	return out
}

// BenchmarkDecodePod_5000LabelSets decodes pods that share 5,000 label sets.
func BenchmarkDecodePod_5000LabelSets(b *testing.B) {
	benchmarkDecodePod(b, func(p *corev1.Pod) []byte {
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		data, err := json.Marshal(p)
		require.NoError(b, err)
		return data
	})
}

// BenchmarkDecodePodProtobuf_5000LabelSets is the same in protobuf.
func BenchmarkDecodePodProtobuf_5000LabelSets(b *testing.B) {
	benchmarkDecodePod(b, func(p *corev1.Pod) []byte { return protobufOf(b, "Pod", p) })
}

func benchmarkDecodePod(b *testing.B, encode func(*corev1.Pod) []byte) {
	pods := make([][]byte, 5000)
	for i := range pods {
		pods[i] = encode(typedPod(b, i))
	}
	k := podKind()
	b.SetBytes(int64(len(pods[0])))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, err := k.Decode(pods[i%len(pods)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
	b.ReportMetric(float64(len(pods[0])), "B/pod")
}
