// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-net/sluice/sources/objects"
)

// serves implements [api]. Only an answer that lists what there is, without the kind, says that
// the kind is absent. A path that is not found does not: a proxy with no API server behind it
// answers so to every request, and no object may go for that.
func (s *server) serves(ctx context.Context, k *objects.Kind) (bool, error) {
	if k.BuiltIn() {
		return true, nil
	}
	var groups metav1.APIGroupList
	if err := s.discover(ctx, k, "/apis", "APIGroupList", &groups); err != nil {
		return false, err
	}
	if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return slices.ContainsFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool {
			return v.GroupVersion == k.APIVersion()
		})
	}) {
		return false, nil
	}
	var list metav1.APIResourceList
	path := "/apis/" + k.APIVersion()
	if err := s.discover(ctx, k, path, "APIResourceList", &list); err != nil {
		return false, err
	}
	if list.GroupVersion != k.APIVersion() {
		return false, fmt.Errorf("discover %s: the answer is of %q", path, list.GroupVersion)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Name == k.Resource
	}), nil
}

// discover reads an answer of discovery. One of another kind says nothing of what there is.
func (s *server) discover(
	ctx context.Context, k *objects.Kind, path, kind string, into any,
) error {
	data, err := body(s.clients[k].Get().MaxRetries(0).AbsPath(path).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx))
	if err != nil {
		return fmt.Errorf("discover %s: %w", path, err)
	}
	var is metav1.TypeMeta
	if err := json.Unmarshal(data, &is); err != nil {
		return fmt.Errorf("discover %s: %w", path, err)
	}
	if is.Kind != kind {
		return fmt.Errorf("discover %s: the answer is a %q, not a %s", path, is.Kind, kind)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("discover %s: %w", path, err)
	}
	return nil
}
