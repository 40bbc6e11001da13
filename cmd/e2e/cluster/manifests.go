// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Apply creates or changes the objects of YAML manifests, in their order, each
// with its status. A CustomResourceDefinition is served when Apply returns.
func (c *Cluster) Apply(manifests string) {
	c.t.Helper()
	objects, err := parseManifests(manifests)
	require.NoError(c.t, err)
	ctx, cancel := requestContext()
	defer cancel()
	for _, object := range objects {
		require.NoError(c.t, c.apply(ctx, object), "apply %s %s", object.GetKind(), object.GetName())
	}
}

// Delete deletes the objects of YAML manifests, in reverse order. An object
// that is not there is an error.
func (c *Cluster) Delete(manifests string) {
	c.t.Helper()
	objects, err := parseManifests(manifests)
	require.NoError(c.t, err)
	ctx, cancel := requestContext()
	defer cancel()
	for i := len(objects) - 1; i >= 0; i-- {
		object := objects[i]
		if object.GetKind() == "Namespace" {
			c.DeleteNamespace(object.GetName())
			continue
		}
		client, err := c.clientFor(object)
		require.NoError(c.t, err)
		require.NoError(c.t, client.Delete(ctx, object.GetName(), now), "delete %s %s", object.GetKind(), object.GetName())
	}
}

func (c *Cluster) apply(ctx context.Context, object *unstructured.Unstructured) error {
	client, err := c.clientFor(object)
	if err != nil {
		return err
	}
	// Only the API server gives these out, and it refuses others than its own.
	for _, field := range []string{"uid", "resourceVersion", "managedFields"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	options := metav1.ApplyOptions{FieldManager: "e2e", Force: true}
	if _, err := client.Apply(ctx, object.GetName(), object, options); err != nil {
		return err
	}
	if _, hasStatus := object.Object["status"]; hasStatus {
		// Without a status subresource the status went with the object.
		if _, err := client.ApplyStatus(ctx, object.GetName(), object, options); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("status: %w", err)
		}
	}
	if object.GetKind() == "CustomResourceDefinition" {
		return c.waitServed(ctx, object)
	}
	return nil
}

// clientFor finds the resource of an object's kind through discovery.
func (c *Cluster) clientFor(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("find resource of %s: %w", kind, err)
	}
	resource := c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return resource, nil
	}
	if object.GetNamespace() == "" {
		return resource.Namespace(metav1.NamespaceDefault), nil
	}
	return resource.Namespace(object.GetNamespace()), nil
}

// waitServed waits until discovery knows every served version of a definition
// and the objects can be listed, which is some time after it is established.
func (c *Cluster) waitServed(ctx context.Context, object *unstructured.Unstructured) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
	served := func(ctx context.Context, version string) bool {
		c.mapper.Reset()
		mapping, err := c.mapper.RESTMapping(kind, version)
		if err != nil {
			return false
		}
		_, err = c.dynamic.Resource(mapping.Resource).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil
	}
	for _, version := range crd.Spec.Versions {
		err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
			return !version.Served || served(ctx, version.Name), nil
		})
		if err != nil {
			return fmt.Errorf("wait until %s is served: %w", version.Name, err)
		}
	}
	return nil
}

// applyDeploy applies what deploy/ needs before an agent runs; not the
// DaemonSet, as the tests run the agent themselves, and not the admission policy, which
// refuses the tokens of Kubeconfig.
func (c *Cluster) applyDeploy() {
	c.t.Helper()
	for _, path := range []string{"namespace.yaml", "crds", "rbac"} {
		c.ApplyFrom(path)
	}
}

// ApplyFrom applies the YAML files below a path of deploy/.
func (c *Cluster) ApplyFrom(path string) {
	c.t.Helper()
	root, err := moduleRoot()
	require.NoError(c.t, err)
	manifests, err := readManifests(filepath.Join(root, "deploy", path))
	require.NoError(c.t, err)
	c.Apply(manifests)
}

// readManifests joins the YAML files below a path, kustomizations left out.
func readManifests(root string) (string, error) {
	var documents []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" || entry.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		documents = append(documents, string(text))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read manifests: %w", err)
	}
	return strings.Join(documents, "\n---\n"), nil
}

// parseManifests splits YAML into its documents; empty ones are left out.
func parseManifests(manifests string) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	var objects []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("parse manifest: %w", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, &object)
		}
	}
}

// moduleRoot is the directory of go.mod at or above the working directory,
// which for a test is that of its package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find go.mod: not in a module")
		}
		dir = parent
	}
}
