// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// churn changes objects at random, as fast as the API server lets it.
type churn struct {
	t       testing.TB
	c       *cluster.Cluster
	random  *rand.Rand
	end     context.CancelFunc
	wait    sync.WaitGroup
	changes int
	err     error // that ended it

	interrupted atomic.Bool // changes may fail
}

const (
	churnPods     = 60
	churnPolicies = 8
)

var churnNamespaces = []string{"churn-a", "churn-b", "churn-c"}

func newChurn(t testing.TB, c *cluster.Cluster, seed uint64) *churn {
	for i, name := range churnNamespaces {
		c.CreateNamespace(name, map[string]string{"tier": fmt.Sprint(i)})
	}
	c.CreateNode(cluster.Node{Name: "node-4", Labels: map[string]string{"zone": "churn"}, InternalIPs: addrs("192.168.7.4"), Ready: true})
	c.CreateNode(cluster.Node{Name: "node-5", Labels: map[string]string{"zone": "churn"}, InternalIPs: addrs("192.168.7.5"), Ready: true})
	return &churn{t: t, c: c, random: rand.New(rand.NewPCG(seed, 1))}
}

func (ch *churn) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ch.end = cancel
	ch.t.Cleanup(func() { cancel(); ch.wait.Wait() })
	ch.wait.Go(func() {
		for ctx.Err() == nil {
			switch err := ch.change(ctx); {
			case err == nil:
				ch.changes++
			case ctx.Err() != nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), ch.interrupted.Load():
			default:
				ch.err = err
				return
			}
		}
	})
}

func (ch *churn) stop() {
	ch.t.Helper()
	ch.end()
	ch.wait.Wait()
	require.NoError(ch.t, ch.err, "change objects")
}

// change makes one random change. A pod that is there is deleted or relabeled,
// one that is not is created, so about half of them are.
func (ch *churn) change(ctx context.Context) error {
	switch n := ch.random.IntN(20); {
	case n < 10:
		return ch.createOrDeletePod(ctx)
	case n < 14:
		return ch.relabelPod(ctx)
	case n < 17:
		return ch.changePolicy(ctx)
	case n < 18:
		return ch.relabelNamespace(ctx)
	default:
		return ch.changeNode(ctx)
	}
}

func (ch *churn) pick(of ...string) string { return of[ch.random.IntN(len(of))] }

func (ch *churn) pod() (namespace, name string) {
	i := ch.random.IntN(churnPods)
	return churnNamespaces[i%len(churnNamespaces)], fmt.Sprintf("pod-%d", i)
}

func (ch *churn) createOrDeletePod(ctx context.Context) error {
	namespace, name := ch.pod()
	pods := ch.c.Client().CoreV1().Pods(namespace)
	err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if !apierrors.IsNotFound(err) {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": ch.pick("a", "b", "c")}},
		Spec: corev1.PodSpec{
			NodeName:   ch.pick(localNode, localNode, "node-4", "node-5"),
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	if pod, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	// Few enough that two pods may have the same at a time.
	pod.Status.PodIP = fmt.Sprintf("10.9.0.%d", 1+ch.random.IntN(churnPods))
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	if ch.random.IntN(4) == 0 {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00:9::%x", 1+ch.random.IntN(churnPods))})
	}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (ch *churn) relabelPod(ctx context.Context) error {
	namespace, name := ch.pod()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"app":%q,"extra":%q}}}`, ch.pick("a", "b", "c"), ch.pick("x", "y"))
	_, err := ch.c.Client().CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (ch *churn) relabelNamespace(ctx context.Context) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"tier":%q}}}`, ch.pick("0", "1", "2"))
	_, err := ch.c.Client().CoreV1().Namespaces().Patch(ctx, ch.pick(churnNamespaces...), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (ch *churn) changeNode(ctx context.Context) error {
	name := ch.pick("node-4", "node-5")
	nodes := ch.c.Client().CoreV1().Nodes()
	if ch.random.IntN(2) == 0 {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"churn":%q}}}`, ch.pick("yes", "no"))
		_, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionStatus(ch.pick("True", "False"))}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// changePolicy deletes a policy, or creates or changes it.
func (ch *churn) changePolicy(ctx context.Context) error {
	policies := ch.c.Dynamic().Resource(policyResource)
	name := fmt.Sprintf("churn-%d", ch.random.IntN(churnPolicies))
	if ch.random.IntN(3) == 0 {
		return policies.Delete(ctx, name, metav1.DeleteOptions{})
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumEgressGatewayPolicy", "metadata": map[string]any{"name": name}, "spec": ch.policySpec(),
	}}
	_, err := policies.Apply(ctx, name, object, metav1.ApplyOptions{FieldManager: "e2e", Force: true})
	return err
}

// policySpec selects pods of the namespaces of churn only.
func (ch *churn) policySpec() map[string]any {
	matching := func(key, value string) map[string]any {
		return map[string]any{"matchLabels": map[string]any{key: value}}
	}
	tier := map[string]any{"matchExpressions": []any{map[string]any{"key": "tier", "operator": "Exists"}}}
	if ch.random.IntN(2) == 0 {
		tier = matching("tier", ch.pick("0", "1", "2"))
	}
	item := map[string]any{"namespaceSelector": tier}
	if ch.random.IntN(3) > 0 {
		item["podSelector"] = matching("app", ch.pick("a", "b", "c"))
	}
	if ch.random.IntN(4) == 0 {
		item["nodeSelector"] = matching("churn", "yes")
	}
	gateways := []any{map[string]any{"nodeSelector": matching(ch.pick("zone", "churn", "egress"), ch.pick("churn", "yes", "local"))}}
	if ch.random.IntN(2) == 0 {
		gateways = append(gateways, map[string]any{"nodeSelector": matching("egress", "local"), "egressIP": egressIP.String()})
	}
	return map[string]any{
		"selectors":        []any{item},
		"destinationCIDRs": []any{ch.pick("203.0.113.0/24", "203.0.113.0/25", "198.51.100.0/24"), ch.pick("2001:db8:100::/48", "0.0.0.0/0")},
		"excludedCIDRs":    []any{ch.pick("203.0.113.1/32", "203.0.113.2/32", "203.0.113.200/32")},
		"egressGateways":   gateways,
	}
}
