// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The operator has no part in a node: no privileges, no network or directory of the host.
func TestOperatorSecurity(t *testing.T) {
	d := object[appsv1.Deployment](t, decode(t, renderSet(t, "default", kubeVersion)),
		"Deployment/sluice-operator")
	require.EqualValues(t, 2, *d.Spec.Replicas)
	pod := d.Spec.Template.Spec
	require.False(t, pod.HostNetwork)
	require.Empty(t, pod.Volumes)
	require.Equal(t, "sluice-operator", pod.ServiceAccountName)
	s := pod.Containers[0].SecurityContext
	require.True(t, *s.RunAsNonRoot)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.False(t, *s.AllowPrivilegeEscalation)
	require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, s.Capabilities)
	require.Equal(t, []string{"/sluice", "operator"}, pod.Containers[0].Command)
}

// The pods of agents and of the operator are not those of the other's controller and monitor.
func TestOperatorSelector(t *testing.T) {
	all := decode(t, renderSet(t, "all", kubeVersion))
	agents := object[appsv1.DaemonSet](t, all, "DaemonSet/sluice").Spec
	operators := object[appsv1.Deployment](t, all, "Deployment/sluice-operator").Spec
	const name = "app.kubernetes.io/name"
	require.Equal(t, "sluice-operator", operators.Selector.MatchLabels[name])
	require.Equal(t, operators.Selector.MatchLabels, operators.Template.Labels)
	require.Equal(t, "sluice", agents.Template.Labels[name])
}

// rights are what a role gives, as "verb group/resource".
func rights(rules []rbacv1.PolicyRule) (all []string) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					all = append(all, verb+" "+group+"/"+resource)
				}
			}
		}
	}
	return all
}

// writes leaves out the rights to read.
func writes(all []string) []string {
	return slices.DeleteFunc(all, func(right string) bool {
		return right[:4] == "get " || right[:4] == "list" || right[:5] == "watch"
	})
}

// What agents may write is of their own node, to which the admission policy holds them: all else
// is the operator's.
func TestWrites(t *testing.T) {
	all := decode(t, renderSet(t, "default", kubeVersion))
	agent := rights(object[rbacv1.ClusterRole](t, all, "ClusterRole/sluice").Rules)
	require.NotContains(t, agent, "list sluice.io/nodereports")
	own := append(writes(agent), writes(rights(object[rbacv1.Role](t, all, "Role/sluice").Rules))...)
	require.ElementsMatch(t, []string{
		"patch /nodes", "create sluice.io/nodereports", "patch sluice.io/nodereports",
		"create /events", "patch /events",
		"create discovery.k8s.io/endpointslices", "patch discovery.k8s.io/endpointslices",
	}, own)
	policy := object[admissionv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy/sluice")
	var held []string
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		held = append(held, rule.APIGroups[0]+"/"+rule.Resources[0])
	}
	for _, right := range own {
		require.True(t, slices.ContainsFunc(held, func(r string) bool {
			return right[slices.Index([]byte(right), ' ')+1:] == r
		}), "%s: the admission policy holds no agent to its node", right)
	}

	operator := rights(object[rbacv1.ClusterRole](t, all, "ClusterRole/sluice-operator").Rules)
	require.ElementsMatch(t, []string{
		"patch cilium.io/ciliumclusterwidenetworkpolicies/status",
		"patch cilium.io/ciliumegressgatewaypolicies/status",
		"patch cilium.io/ciliumnetworkpolicies/status", "create /events", "patch /events",
	}, writes(operator))
	lease := object[rbacv1.Role](t, all, "Role/sluice-operator").Rules
	require.ElementsMatch(t, []string{
		"get coordination.k8s.io/leases", "update coordination.k8s.io/leases",
		"create coordination.k8s.io/leases",
	}, rights(lease))
	require.Equal(t, []string{"sluice"}, lease[0].ResourceNames)
}

// With --egress-ips only the operator writes the status of pools, and agents read it.
func TestPoolRights(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	files, err := render(c, map[string]any{
		"flags": map[string]any{"egress-ips": true, "object-status": false},
	}, kubeVersion)
	require.NoError(t, err)
	all := decode(t, files)
	about := func(role string) []string {
		return slices.DeleteFunc(rights(object[rbacv1.ClusterRole](t, all, role).Rules),
			func(right string) bool { return !strings.Contains(right, "egressippools") })
	}
	reads := []string{
		"get sluice.io/egressippools", "list sluice.io/egressippools", "watch sluice.io/egressippools",
	}
	require.ElementsMatch(t, reads, about("ClusterRole/sluice"))
	require.ElementsMatch(t, append(reads, "patch sluice.io/egressippools/status"),
		about("ClusterRole/sluice-operator"))
	operator := object[rbacv1.ClusterRole](t, all, "ClusterRole/sluice-operator").Rules
	require.ElementsMatch(t, []string{
		"patch sluice.io/egressippools/status", "create /events", "patch /events",
	}, writes(rights(operator)))
	// Nodes vote: agents need no Leases, and read one ConfigMap.
	agent := object[rbacv1.Role](t, all, "Role/sluice").Rules
	require.ElementsMatch(t, []string{
		"get /configmaps", "list /configmaps", "watch /configmaps",
		"create discovery.k8s.io/endpointslices", "patch discovery.k8s.io/endpointslices",
	}, rights(agent))
	require.Equal(t, []string{"sluice-egress-voters"}, agent[0].ResourceNames)
	args := object[appsv1.Deployment](t, all, "Deployment/sluice-operator").Spec.Template.Spec.
		Containers[0].Args
	require.Contains(t, args, "--egress-ips=true")
}
