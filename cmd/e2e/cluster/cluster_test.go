// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read is all that the agent reads.
var read = []schema.GroupVersionResource{
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "nodes"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumegressgatewaypolicies"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints"},
	{Group: "cilium.io", Version: "v2alpha1", Resource: "ciliumendpointslices"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumidentities"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumnetworkpolicies"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumclusterwidenetworkpolicies"},
	{Group: "cilium.io", Version: "v2", Resource: "ciliumcidrgroups"},
}

const policy = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: web}
spec:
  selectors:
  - podSelector: {matchLabels: {app: web}}
  destinationCIDRs: [192.0.2.0/24, not-a-prefix]
  egressGateway:
    nodeSelector: {matchLabels: {gateway: "yes"}}
    egressIP: 198.51.100.7
    unknown: kept
`

// agent is what an agent with deploy/'s service account can reach.
type agent struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

func newAgent(t *testing.T, c *Cluster) agent {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig("sluice"))
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	typed, err := kubernetes.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	untyped, err := dynamic.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	return agent{typed: typed, dynamic: untyped}
}

// next returns the next event of a watch; ok is false when the watch is over.
func next(t *testing.T, w watch.Interface) (event watch.Event, ok bool) {
	t.Helper()
	select {
	case event, ok = <-w.ResultChan():
		return event, ok
	case <-time.After(requestTimeout):
		require.Fail(t, "no event in time")
		return watch.Event{}, false
	}
}

// TestCluster is one test of many steps, since a cluster takes seconds to start.
func TestCluster(t *testing.T) {
	c := Start(t, Binary(t))
	ctx := t.Context()
	c.CreateNamespace("shop", map[string]string{"team": "a"})
	c.CreateNode(Node{
		Name:        "node-1",
		Labels:      map[string]string{"gateway": "yes"},
		InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		PodCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")},
		Ready:       true,
	})
	c.CreatePod(Pod{
		Namespace: "shop", Name: "web", Node: "node-1", Labels: map[string]string{"app": "web"},
		IPs: []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00:1::5")},
	})
	c.Apply(policy)
	a := newAgent(t, c)

	t.Run("the agent reads what was created", func(t *testing.T) {
		pod, err := a.typed.CoreV1().Pods("shop").Get(ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "10.1.0.5", pod.Status.PodIP)
		require.Equal(t, []corev1.PodIP{{IP: "10.1.0.5"}, {IP: "fd00:1::5"}}, pod.Status.PodIPs)
		require.Equal(t, "node-1", pod.Spec.NodeName)
		require.Equal(t, corev1.PodRunning, pod.Status.Phase)

		node, err := a.typed.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"10.1.0.0/24"}, node.Spec.PodCIDRs)
		require.Len(t, node.Status.Addresses, 2)
		require.Equal(t, corev1.ConditionTrue, node.Status.Conditions[0].Status)

		// Bad values and unknown fields are kept: the agent judges them.
		object, err := a.dynamic.Resource(read[5]).Get(ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		spec := object.Object["spec"].(map[string]any)
		require.Equal(t, []any{"192.0.2.0/24", "not-a-prefix"}, spec["destinationCIDRs"])
		require.Equal(t, "kept", spec["egressGateway"].(map[string]any)["unknown"])
	})
	t.Run("every kind is listed and watched", func(t *testing.T) {
		for _, resource := range read {
			list, err := a.dynamic.Resource(resource).List(ctx, metav1.ListOptions{})
			require.NoError(t, err, resource.Resource)
			w, err := a.dynamic.Resource(resource).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
			require.NoError(t, err, resource.Resource)
			w.Stop()
		}
	})
	t.Run("nothing else is allowed", func(t *testing.T) { testForbidden(t, a) })
	t.Run("policies accepted and refused", func(t *testing.T) { testPolicySchema(t, c) })
	t.Run("objects of cilium mode", func(t *testing.T) { testCiliumObjects(t, c) })
	t.Run("all of deploy is accepted", func(t *testing.T) { testDeployAccepted(t, c) })
	t.Run("changes and deletions", func(t *testing.T) { testChanges(t, c) })
	t.Run("the API server killed and started", func(t *testing.T) { testRestart(t, c, a) })
}

func testForbidden(t *testing.T, a agent) {
	ctx := t.Context()
	_, err := a.typed.CoreV1().Secrets(Namespace).List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "list secrets: %v", err)
	_, err = a.typed.CoreV1().ConfigMaps(Namespace).Get(ctx, "any", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "get configmap: %v", err)
	patch := []byte(`{"metadata":{"labels":{"app":"changed"}}}`)
	_, err = a.typed.CoreV1().Pods("shop").Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{})
	require.True(t, apierrors.IsForbidden(err), "patch pod: %v", err)
	slice := []byte(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4","endpoints":[]}`)
	_, err = a.typed.DiscoveryV1().EndpointSlices("shop").Patch(ctx, "web", types.ApplyPatchType, slice, metav1.PatchOptions{FieldManager: "test"})
	require.True(t, apierrors.IsForbidden(err), "patch slice of another namespace: %v", err)
	_, err = a.dynamic.Resource(read[5]).Patch(ctx, "web", types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status")
	require.True(t, apierrors.IsForbidden(err), "patch status of policy: %v", err)
	_, err = a.typed.CoordinationV1().Leases(Namespace).Get(ctx, "sluice", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "read the lease of the operators: %v", err)
	err = a.dynamic.Resource(read[5]).Delete(ctx, "web", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), "delete policy: %v", err)

	review, err := a.typed.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: Namespace},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var allowed, want []string
	for _, rule := range review.Status.ResourceRules {
		if slices.ContainsFunc(rule.Resources, func(r string) bool { return strings.HasPrefix(r, "selfsubject") }) {
			continue // every client may ask what it may do
		}
		for _, resource := range rule.Resources {
			require.Len(t, rule.APIGroups, 1)
			allowed = append(allowed, rule.APIGroups[0]+"/"+resource+" "+strings.Join(rule.Verbs, ","))
		}
	}
	for _, resource := range read {
		want = append(want, resource.Group+"/"+resource.Resource+" get,list,watch")
	}
	want = append(want, writes...)
	want = append(want, "apiextensions.k8s.io/customresourcedefinitions get")
	for _, rule := range announceRules {
		want = append(want, rule.APIGroups[0]+"/"+rule.Resources[0]+" "+strings.Join(rule.Verbs, ","))
	}
	require.ElementsMatch(t, want, allowed)
}

func testPolicySchema(t *testing.T, c *Cluster) {
	gateways := strings.Repeat("{nodeSelector: {}},", 64)
	tests := map[string]struct{ spec, refused string }{
		"least":               {spec: `{selectors: [], destinationCIDRs: []}`},
		"bad values":          {spec: `{selectors: [{}], destinationCIDRs: [none], excludedCIDRs: [none], egressGateway: {nodeSelector: {}, egressIP: none}}`},
		"bad operator":        {spec: `{selectors: [{podSelector: {matchExpressions: [{key: a, operator: Gt}]}}], destinationCIDRs: []}`},
		"unknown fields":      {spec: `{selectors: [{new: {a: 1}}], destinationCIDRs: [], new: [1], egressGateway: {nodeSelector: {new: 1}, new: 1}}`},
		"64 gateways":         {spec: `{selectors: [], destinationCIDRs: [], egressGateways: [` + gateways + `]}`},
		"65 gateways":         {spec: `{selectors: [], destinationCIDRs: [], egressGateways: [` + gateways + `{nodeSelector: {}}]}`, refused: "spec.egressGateways: Too many"},
		"no selectors":        {spec: `{destinationCIDRs: []}`, refused: "spec.selectors: Required"},
		"no destinations":     {spec: `{selectors: []}`, refused: "spec.destinationCIDRs: Required"},
		"no gateway selector": {spec: `{selectors: [], destinationCIDRs: [], egressGateway: {}}`, refused: "spec.egressGateway.nodeSelector: Required"},
		"label of a number":   {spec: `{selectors: [{podSelector: {matchLabels: {a: 1}}}], destinationCIDRs: []}`, refused: "matchLabels.a: Invalid"},
	}
	for name, test := range tests {
		objects, err := parseManifests("{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy, metadata: {name: p}, spec: " + test.spec + "}")
		require.NoError(t, err)
		_, err = c.Dynamic().Resource(read[5]).Create(t.Context(), objects[0], metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if test.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, test.refused, name)
		}
	}
}

func testCiliumObjects(t *testing.T, c *Cluster) {
	const manifests = `
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {name: web, namespace: shop}
status:
  id: 7
  identity: {id: 1234, labels: ["k8s:app=web"]}
  networking: {addressing: [{ipv4: 10.1.0.5}], node: 10.0.0.1}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumEndpointSlice
metadata: {name: ces-1}
namespace: shop
endpoints:
- {name: web, id: 1234, networking: {addressing: [{ipv4: 10.1.0.5}], node: 10.0.0.1}}
---
apiVersion: cilium.io/v2
kind: CiliumIdentity
metadata: {name: "1234"}
security-labels: {"k8s:app": web}
---
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node-1}
spec:
  addresses: [{type: InternalIP, ip: 10.0.0.1}]
  ipam: {podCIDRs: [10.1.0.0/24]}
`
	c.Apply(manifests)
	endpoint, err := c.Dynamic().Resource(read[6]).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	identity := endpoint.Object["status"].(map[string]any)["identity"].(map[string]any)
	require.EqualValues(t, 1234, identity["id"], "the status is kept without a subresource")
	c.Delete(manifests)
	list, err := c.Dynamic().Resource(read[7]).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
}

func testDeployAccepted(t *testing.T, c *Cluster) {
	root, err := moduleRoot()
	require.NoError(t, err)
	manifest, err := os.ReadFile(filepath.Join(root, "deploy", "daemonset.yaml"))
	require.NoError(t, err)
	c.Apply(string(manifest))
	daemonSet, err := c.Client().AppsV1().DaemonSets(Namespace).Get(t.Context(), "sluice", metav1.GetOptions{})
	require.NoError(t, err)

	// A pod of it passes the admission of pods, with its security context.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: daemonSet.Spec.Template.Spec}
	pod.Spec.NodeName = "node-1"
	_, err = c.Client().CoreV1().Pods(Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	c.DeletePod(Namespace, "agent")
}

func testChanges(t *testing.T, c *Cluster) {
	ctx := t.Context()
	c.SetNodeReady("node-1", false)
	node, err := c.Client().CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.ConditionFalse, node.Status.Conditions[0].Status)
	require.Len(t, node.Status.Addresses, 2, "the rest of the status stays")

	c.Apply(strings.ReplaceAll(policy, "198.51.100.7", "198.51.100.8"))
	object, err := c.Dynamic().Resource(read[5]).Get(ctx, "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "198.51.100.8", object.Object["spec"].(map[string]any)["egressGateway"].(map[string]any)["egressIP"])
	c.Delete(policy)
	_, err = c.Dynamic().Resource(read[5]).Get(ctx, "web", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	// Applying a pod brings its status along, as a manifest of the files source has it.
	const gone = `
apiVersion: v1
kind: Namespace
metadata: {name: gone}
---
apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: gone, uid: made-up}
spec: {nodeName: node-1, containers: [{name: main, image: none}]}
status: {phase: Running, podIP: 10.1.0.9, podIPs: [{ip: 10.1.0.9}]}
`
	c.Apply(gone)
	pod, err := c.Client().CoreV1().Pods("gone").Get(ctx, "pod", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.1.0.9", pod.Status.PodIP)
	c.Delete(gone)
	_, err = c.Client().CoreV1().Namespaces().Get(ctx, "gone", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	c.CreateNode(Node{Name: "node-2"})
	c.DeleteNode("node-2")
}

func testRestart(t *testing.T, c *Cluster, a agent) {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	pods := a.typed.CoreV1().Pods("shop")
	list, err := pods.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	old := metav1.ListOptions{ResourceVersion: list.ResourceVersion}
	w, err := pods.Watch(ctx, old)
	require.NoError(t, err)
	defer w.Stop()

	c.DeletePod("shop", "web")
	event, _ := next(t, w) // marked for deletion
	require.Equal(t, watch.Modified, event.Type)
	event, ok := next(t, w)
	require.True(t, ok)
	require.Equal(t, watch.Deleted, event.Type)
	before, err := strconv.ParseInt(old.ResourceVersion, 10, 64)
	require.NoError(t, err)
	require.Greater(t, c.Compact(), before)
	c.KillAPIServer()
	for ok := true; ok; _, ok = next(t, w) { // the watch ends
	}
	_, err = pods.List(ctx, metav1.ListOptions{})
	require.Error(t, err)

	c.StartAPIServer()
	list, err = pods.List(ctx, metav1.ListOptions{})
	require.NoError(t, err, "the token is still good")
	require.Empty(t, list.Items, "the data is still there")

	// Resuming from before the compaction is refused, in an event or at once.
	expired, err := pods.Watch(ctx, old)
	if err == nil {
		defer expired.Stop()
		event, ok = next(t, expired)
		require.True(t, ok)
		require.Equal(t, watch.Error, event.Type)
		err = apierrors.FromObject(event.Object)
	}
	require.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "%v", err)
}
