// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const deployDir = "../../deploy"

// kinds are those that the chart may make.
var kinds = map[string]func() any{
	"ClusterRole":              func() any { return new(rbacv1.ClusterRole) },
	"ClusterRoleBinding":       func() any { return new(rbacv1.ClusterRoleBinding) },
	"Secret":                   func() any { return new(corev1.Secret) },
	"ConfigMap":                func() any { return new(corev1.ConfigMap) },
	"CustomResourceDefinition": func() any { return new(apiextensionsv1.CustomResourceDefinition) },
	"DaemonSet":                func() any { return new(appsv1.DaemonSet) },
	"Deployment":               func() any { return new(appsv1.Deployment) },
	"PodDisruptionBudget":      func() any { return new(policyv1.PodDisruptionBudget) },
	"NetworkPolicy":            func() any { return new(networkingv1.NetworkPolicy) },
	"PodMonitor":               func() any { return new(monitoringv1.PodMonitor) },
	"PrometheusRule":           func() any { return new(monitoringv1.PrometheusRule) },
	"Role":                     func() any { return new(rbacv1.Role) },
	"RoleBinding":              func() any { return new(rbacv1.RoleBinding) },
	"Service":                  func() any { return new(corev1.Service) },
	"ServiceAccount":           func() any { return new(corev1.ServiceAccount) },
	"ServiceMonitor":           func() any { return new(monitoringv1.ServiceMonitor) },

	"ValidatingAdmissionPolicy":        func() any { return new(admissionv1.ValidatingAdmissionPolicy) },
	"ValidatingAdmissionPolicyBinding": func() any { return new(admissionv1.ValidatingAdmissionPolicyBinding) },
}

// objects are what a chart makes, by kind and name.
type objects map[string]any

func object[T any](t *testing.T, all objects, key string) *T {
	t.Helper()
	require.Contains(t, all, key)
	return all[key].(*T)
}

// decode reads rendered templates strictly: an unknown or a repeated field fails.
func decode(t *testing.T, files map[string]string) objects {
	t.Helper()
	all := objects{}
	for path, text := range files {
		if path == "NOTES.txt" {
			continue
		}
		for _, document := range strings.Split("\n"+text, "\n---\n") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			var header struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			require.NoError(t, yaml.Unmarshal([]byte(document), &header), path)
			require.Contains(t, kinds, header.Kind, path)
			into := kinds[header.Kind]()
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), into), path)
			key := header.Kind + "/" + header.Metadata.Name
			require.NotContains(t, all, key)
			all[key] = into
		}
	}
	return all
}

// renderSet renders the chart with a file of values/.
func renderSet(t *testing.T, set, kubernetes string) map[string]string {
	t.Helper()
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	values, err := readYAML(filepath.Join("values", set+".yaml"))
	require.NoError(t, err)
	files, err := render(c, values, kubernetes)
	require.NoError(t, err)
	return files
}

func keys(all objects) (keys []string) {
	for key := range all {
		keys = append(keys, key)
	}
	return keys
}

func agentOf(t *testing.T, all objects) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	pod := object[appsv1.DaemonSet](t, all, "DaemonSet/sluice").Spec.Template.Spec
	return pod, pod.Containers[0]
}
