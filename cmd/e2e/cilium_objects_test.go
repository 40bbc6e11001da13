// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// ciliumEndpointObject is what a test needs of a CiliumEndpoint, or of one in a slice.
type ciliumEndpointObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Identity   struct{ ID int64 }
		Networking *ciliumNetworking
	}
}

type ciliumNetworking struct {
	Node       string
	Addressing []struct{ IPv4, IPv6 string }
}

type ciliumSliceObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Namespace         string
	Endpoints         []struct {
		Name       string
		ID         int64
		Networking *ciliumNetworking
	}
}

type ciliumIdentityObject struct {
	metav1.ObjectMeta `json:"metadata"`
	SecurityLabels    map[string]string `json:"security-labels"`
}

type ciliumNodeObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct{ Addresses []struct{ IP string } }
}

func ciliumResource(version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cilium.io", Version: version, Resource: resource}
}

func (w *world) loadCilium(ctx context.Context, c *cluster.Cluster) error {
	endpoints, err1 := list[ciliumEndpointObject](ctx, c, ciliumResource("v2", "ciliumendpoints"))
	inSlices, err2 := list[ciliumSliceObject](ctx, c, ciliumResource("v2alpha1", "ciliumendpointslices"))
	identities, err3 := list[ciliumIdentityObject](ctx, c, ciliumResource("v2", "ciliumidentities"))
	nodes, err4 := list[ciliumNodeObject](ctx, c, ciliumResource("v2", "ciliumnodes"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for _, n := range nodes {
		told := ciliumNode{name: n.Name}
		for _, a := range n.Spec.Addresses {
			told.addrs = append(told.addrs, addrs(a.IP)...)
		}
		w.cilium = append(w.cilium, told)
	}
	labelsOf := map[int64]labels.Set{}
	for _, identity := range identities {
		id, err := strconv.ParseInt(identity.Name, 10, 64)
		if err != nil {
			continue
		}
		labelsOf[id] = labels.Set{}
		for key, value := range identity.SecurityLabels {
			if bare, ok := strings.CutPrefix(key, "k8s:"); ok && !strings.HasPrefix(bare, "io.") {
				labelsOf[id][bare] = value
			}
		}
	}
	add := func(namespace, name string, id int64, created time.Time, at *ciliumNetworking) {
		set, known := labelsOf[id]
		if !known || at == nil {
			return
		}
		e := endpoint{name: name, namespace: namespace, node: w.nodeAt(at.Node), labels: set, created: created}
		for _, a := range at.Addressing {
			e.addrs = append(e.addrs, addrs(a.IPv4, a.IPv6)...)
		}
		w.endpoints = append(w.endpoints, e)
	}
	for _, e := range endpoints {
		add(e.Namespace, e.Name, e.Status.Identity.ID, e.CreationTimestamp.Time, e.Status.Networking)
	}
	for _, s := range inSlices {
		for _, e := range s.Endpoints {
			add(s.Namespace, e.Name, e.ID, time.Time{}, e.Networking)
		}
	}
	return nil
}

// nodeAt is the name of the node with an address.
func (w *world) nodeAt(text string) string {
	for _, addr := range addrs(text) {
		for _, n := range w.nodes {
			if slices.Contains(n.internal, addr) || slices.Contains(n.others, addr) {
				return n.name
			}
		}
		for _, n := range w.cilium {
			if slices.Contains(n.addrs, addr) {
				return n.name
			}
		}
	}
	return ""
}
