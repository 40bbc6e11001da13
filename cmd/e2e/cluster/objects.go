// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokenSeconds is how long a service account's token is good for.
const tokenSeconds int64 = 24 * 60 * 60

// now deletes without waiting for a kubelet.
var now = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// Node describes a node as its kubelet would report it.
type Node struct {
	Name        string
	Labels      map[string]string
	InternalIPs []netip.Addr
	PodCIDRs    []netip.Prefix
	Ready       bool
}

// Pod describes a running pod as its kubelet would report it.
type Pod struct {
	Namespace, Name string
	Node            string
	Labels          map[string]string
	IPs             []netip.Addr // at most one of each family
}

// CreateNamespace creates a namespace.
func (c *Cluster) CreateNamespace(name string, labels map[string]string) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	require.NoError(c.t, err, "create namespace %s", name)
}

// DeleteNamespace deletes a namespace, and finalizes it, as its controller
// would when it is empty. Objects in it stay: delete them first.
func (c *Cluster) DeleteNamespace(name string) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	namespaces := c.client.CoreV1().Namespaces()
	require.NoError(c.t, namespaces.Delete(ctx, name, metav1.DeleteOptions{}), "delete namespace %s", name)
	namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	require.NoError(c.t, err, "get namespace %s", name)
	namespace.Spec.Finalizers = nil
	_, err = namespaces.Finalize(ctx, namespace, metav1.UpdateOptions{})
	require.NoError(c.t, err, "finalize namespace %s", name)
}

// CreateNode creates a node with its status.
func (c *Cluster) CreateNode(node Node) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}}
	for _, prefix := range node.PodCIDRs {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, prefix.String())
	}
	if len(object.Spec.PodCIDRs) > 0 {
		object.Spec.PodCIDR = object.Spec.PodCIDRs[0] // must equal the first of the list
	}
	object, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	require.NoError(c.t, err, "create node %s", node.Name)
	for _, ip := range node.InternalIPs {
		address := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()}
		object.Status.Addresses = append(object.Status.Addresses, address)
	}
	object.Status.Conditions = readyCondition(node.Ready)
	_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, object, metav1.UpdateOptions{})
	require.NoError(c.t, err, "update status of node %s", node.Name)
}

// SetNodeReady changes a node's Ready condition.
func (c *Cluster) SetNodeReady(name string, ready bool) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	nodes := c.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	require.NoError(c.t, err, "get node %s", name)
	node.Status.Conditions = readyCondition(ready)
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	require.NoError(c.t, err, "update status of node %s", name)
}

// DeleteNode deletes a node. Pods on it stay.
func (c *Cluster) DeleteNode(name string) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	require.NoError(c.t, c.client.CoreV1().Nodes().Delete(ctx, name, now), "delete node %s", name)
}

func readyCondition(ready bool) []corev1.NodeCondition {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Test"}}
}

// CreatePod creates a pod that is bound to its node, and then reports it as
// running with its addresses: two changes, as in a real cluster.
func (c *Cluster) CreatePod(pod Pod) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels},
		Spec: corev1.PodSpec{
			NodeName:   pod.Node,
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	pods := c.client.CoreV1().Pods(pod.Namespace)
	object, err := pods.Create(ctx, object, metav1.CreateOptions{})
	require.NoError(c.t, err, "create pod %s/%s", pod.Namespace, pod.Name)
	object.Status.Phase = corev1.PodRunning
	object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, ip := range pod.IPs {
		object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	if len(pod.IPs) > 0 {
		object.Status.PodIP = pod.IPs[0].String() // must equal the first of the list
	}
	_, err = pods.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	require.NoError(c.t, err, "update status of pod %s/%s", pod.Namespace, pod.Name)
}

// DeletePod deletes a pod at once.
func (c *Cluster) DeletePod(namespace, name string) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	err := c.client.CoreV1().Pods(namespace).Delete(ctx, name, now)
	require.NoError(c.t, err, "delete pod %s/%s", namespace, name)
}

// createClientPod creates a pod of a service account in Namespace, bound to a node. It
// is on the node's network, as the agent's pod is.
func (c *Cluster) createClientPod(node, serviceAccount string) *authenticationv1.BoundObjectReference {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	pod, err := c.client.CoreV1().Pods(Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: serviceAccount + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: serviceAccount,
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err, "create pod of service account %s on %s", serviceAccount, node)
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
}

// serviceAccountToken asks for a token of a service account in Namespace, bound to an
// object if there is one.
func (c *Cluster) serviceAccountToken(name string, bound *authenticationv1.BoundObjectReference) string {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	seconds := tokenSeconds
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: bound},
	}
	answer, err := c.client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	require.NoError(c.t, err, "request token of service account %s", name)
	return answer.Status.Token
}
