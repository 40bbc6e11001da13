// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// The default is not privileged, and writes nowhere but to its volumes.
func TestSecurity(t *testing.T) {
	_, agent := agentOf(t, decode(t, renderSet(t, "default", kubeVersion)))
	s := agent.SecurityContext
	require.Nil(t, s.Privileged)
	require.False(t, *s.AllowPrivilegeEscalation)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop)
	require.Equal(t, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}, s.Capabilities.Add)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, s.SeccompProfile.Type)

	_, agent = agentOf(t, decode(t, renderSet(t, "all", kubeVersion)))
	s = agent.SecurityContext
	require.Equal(t, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"},
		s.Capabilities.Add)
	require.Equal(t, corev1.SeccompProfileTypeUnconfined, s.SeccompProfile.Type)

	_, agent = agentOf(t, decode(t, renderSet(t, "none", kubeVersion)))
	s = agent.SecurityContext
	require.True(t, *s.Privileged)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.Nil(t, s.Capabilities)
	require.Nil(t, s.AllowPrivilegeEscalation, "the API server refuses it beside privileged")
	require.Nil(t, s.SeccompProfile)
}

// Before Kubernetes 1.30 an annotation says what a field says since.
func TestAppArmor(t *testing.T) {
	const annotation = "container.apparmor.security.beta.kubernetes.io/agent"
	for kubernetes, field := range map[string]bool{"v1.29.14": false, "v1.30.0": true, kubeVersion: true} {
		all := decode(t, renderSet(t, "all", kubernetes))
		template := object[appsv1.DaemonSet](t, all, "DaemonSet/sluice").Spec.Template
		require.Equal(t, field, template.Spec.Containers[0].SecurityContext.AppArmorProfile != nil,
			kubernetes)
		require.Equal(t, !field, template.Annotations[annotation] == "unconfined", kubernetes)
		require.Equal(t, "true", template.Annotations["example.com/scrape"])
	}
}

// There are rights only for what the flags have the agent do.
func TestRights(t *testing.T) {
	resources := func(values map[string]any) (all []string) {
		c, err := loadChart(deployDir)
		require.NoError(t, err)
		files, err := render(c, values, kubeVersion)
		require.NoError(t, err)
		for _, rule := range object[rbacv1.ClusterRole](t, decode(t, files), "ClusterRole/sluice").Rules {
			all = append(all, rule.Resources...)
		}
		var own []string
		for _, rule := range object[rbacv1.Role](t, decode(t, files), "Role/sluice").Rules {
			own = append(own, rule.Resources...)
		}
		require.Equal(t, []string{"endpointslices"}, own, "each agent announces addresses")
		return all
	}
	flag := func(name string, value any) map[string]any {
		return map[string]any{"flags": map[string]any{name: value}}
	}
	policies := []string{"networkpolicies", "ciliumegressgatewaypolicies"}
	cilium := []string{"ciliumendpoints", "ciliumidentities"}
	status := []string{"nodereports"}

	require.Subset(t, resources(nil), slices.Concat(policies, status))
	require.NotSubset(t, resources(nil), cilium[:1])
	require.Subset(t, resources(flag("endpoint-source", "cilium")), cilium)
	require.Subset(t, resources(map[string]any{"rbac": map[string]any{"ciliumEndpoints": true}}),
		cilium)
	bgp := []string{"egressbgppeers"}
	require.NotSubset(t, resources(nil), bgp)
	require.Subset(t, resources(flag("egress-bgp", true)), bgp)
	require.Subset(t, resources(flag("object-status", true)), status)
	without := resources(flag("object-status", false))
	require.Subset(t, without, policies)
	for _, resource := range status {
		require.NotContains(t, without, resource)
	}
}

// Agents are held to their own node where Kubernetes can, unless the values say no.
func TestAdmissionPolicy(t *testing.T) {
	policy, binding := "ValidatingAdmissionPolicy/sluice", "ValidatingAdmissionPolicyBinding/sluice"
	for kubernetes, there := range map[string]bool{"v1.29.14": false, "v1.30.0": true, "v1.30.4-gke.1": true, kubeVersion: true} {
		all := decode(t, renderSet(t, "default", kubernetes))
		require.Equal(t, there, all[policy] != nil, kubernetes)
		require.Equal(t, there, all[binding] != nil, kubernetes)
	}
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	files, err := render(c, map[string]any{"admissionPolicy": false}, kubeVersion)
	require.NoError(t, err)
	all := decode(t, files)
	require.NotContains(t, all, policy)
	require.NotContains(t, all, binding)

	// It is for the account that the values name.
	all = decode(t, renderSet(t, "all", kubeVersion))
	p := object[admissionv1.ValidatingAdmissionPolicy](t, all, policy)
	require.Equal(t,
		"request.userInfo.username == 'system:serviceaccount:sluice-system:node-agent'",
		p.Spec.MatchConditions[0].Expression)
	require.Equal(t, admissionv1.Fail, *p.Spec.FailurePolicy)
	b := object[admissionv1.ValidatingAdmissionPolicyBinding](t, all, binding)
	require.Equal(t, p.Name, b.Spec.PolicyName)
	require.Equal(t, []admissionv1.ValidationAction{admissionv1.Deny}, b.Spec.ValidationActions)
}

// What is applied with its namespace goes there, and cluster-wide objects have none.
func TestNamespaces(t *testing.T) {
	for key, o := range decode(t, renderSet(t, "all", kubeVersion)) {
		wide := strings.HasPrefix(key, "ClusterRole") ||
			strings.HasPrefix(key, "CustomResourceDefinition") ||
			strings.HasPrefix(key, "ValidatingAdmissionPolicy")
		want := namespace
		if wide {
			want = ""
		}
		require.Equal(t, want, o.(interface{ GetNamespace() string }).GetNamespace(), key)
	}
}

// Definitions outlive the release, as policies do that way, and are those of deploy/crds.
func TestDefinitions(t *testing.T) {
	definitions := 0
	for key, o := range decode(t, renderSet(t, "all", kubeVersion)) {
		crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			continue
		}
		definitions++
		require.Equal(t, "keep", crd.Annotations["helm.sh/resource-policy"], key)
		delete(crd.Annotations, "helm.sh/resource-policy")
		require.Equal(t, map[string]string{
			"argocd.argoproj.io/sync-options":   "Prune=false,Delete=false",
			"kustomize.toolkit.fluxcd.io/prune": "disabled",
		}, crd.Annotations, "GitOps tools do not delete them either: %s", key)
		crd.Labels = nil
		var want apiextensionsv1.CustomResourceDefinition
		text := readFile(t, filepath.Join(deployDir, "crds", crd.Spec.Names.Plural+".yaml"))
		require.NoError(t, yaml.UnmarshalStrict(text, &want))
		require.Equal(t, &want, crd, key)
	}
	require.Equal(t, 5, definitions)
}
