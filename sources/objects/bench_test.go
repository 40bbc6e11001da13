// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// realisticPod returns the JSON of a pod of the size that API servers deliver,
// most of which no table needs.
func realisticPod(tb testing.TB, i int) []byte {
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
	data, err := yaml.Marshal(p)
	require.NoError(tb, err)
	data, err = yaml.YAMLToJSON(data)
	require.NoError(tb, err)
	return data
}

// BenchmarkDecodePod_5000LabelSets decodes pods that share 5,000 label sets.
func BenchmarkDecodePod_5000LabelSets(b *testing.B) {
	pods := make([][]byte, 5000)
	for i := range pods {
		pods[i] = realisticPod(b, i)
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
}
