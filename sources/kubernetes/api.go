// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/sources/objects"
)

// api is where objects come from: an API server, or what stands for one.
type api interface {
	list(ctx context.Context, k *objects.Kind, opts metav1.ListOptions) (*itemList, error)
	watch(ctx context.Context, k *objects.Kind, opts metav1.ListOptions) (watch.Interface, error)

	// serves reports whether discovery knows the kind.
	serves(ctx context.Context, k *objects.Kind) (bool, error)

	// definition returns the CustomResourceDefinition of a guarded kind.
	definition(ctx context.Context, k *objects.Kind) (definition, error)

	// timing says how often to come back.
	timing() timing
}

// userAgent is what the agent calls itself in requests.
const userAgent = "sluice"

// timing are the intervals of trying again.
type timing struct {
	retryMin, retryMax time.Duration // after an error, exponentially, each with jitter
	absent             time.Duration // while a kind is not served
	idle               time.Duration // until a kind is listed whose watches have sent nothing
	silence            time.Duration // of an API server that has yet to say anything
}

// server is the API server of a cluster.
type server struct {
	clients     map[*objects.Kind]*rest.RESTClient
	definitions *rest.RESTClient
	bounds      bounds
}

// connect returns the API server that a kubeconfig names, or without one that
// of the cluster that the agent is a pod of. It sends no request yet.
func connect(kubeconfig string, kinds []*objects.Kind) (*server, error) {
	cfg, err := loadConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return newServer(cfg, kinds, defaultBounds)
}

func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find API server without --kubeconfig: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

// newServer returns the API server of a configuration, with bounds of its answers.
func newServer(cfg *rest.Config, kinds []*objects.Kind, bounds bounds) (*server, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return boundAnswers{rt, bounds} })
	cfg.UserAgent = userAgent
	cfg.QPS = -1 // reflectors back off on their own
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create HTTP client: %w", err)
	}
	s := &server{clients: map[*objects.Kind]*rest.RESTClient{}, bounds: bounds}
	for _, k := range kinds {
		accept := runtime.ContentTypeJSON
		if k.Protobuf {
			accept = runtime.ContentTypeProtobuf + "," + accept // less to send, and much less to decode
		}
		gv := schema.GroupVersion{Group: k.Group, Version: k.Version}
		if s.clients[k], err = newClient(cfg, transport, gv, serializer{k}, accept); err != nil {
			return nil, fmt.Errorf("create client for %s: %w", k.Source(), err)
		}
	}
	if s.definitions, err = newClient(cfg, transport, definitions.GroupVersion(), metadataCodecs, acceptMetadata); err != nil {
		return nil, fmt.Errorf("create client for %s: %w", definitions.Resource, err)
	}
	return s, nil
}

func newClient(cfg *rest.Config, transport *http.Client, gv schema.GroupVersion, codecs runtime.NegotiatedSerializer, accept string) (*rest.RESTClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.ContentConfig = rest.ContentConfig{
		GroupVersion:         &gv,
		NegotiatedSerializer: codecs,
		ContentType:          runtime.ContentTypeJSON,
		AcceptContentTypes:   accept,
	}
	return rest.RESTClientForConfigAndClient(cfg, transport)
}

// parameterCodec encodes list options to the query of a URL.
var parameterCodec = func() runtime.ParameterCodec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return runtime.NewParameterCodec(scheme)
}()

// get returns a request for the objects of a kind. It is not repeated by itself,
// for that would go unnoticed.
func (s *server) get(k *objects.Kind, opts metav1.ListOptions) *rest.Request {
	if k.Only.Name != "" {
		opts.FieldSelector = "metadata.name=" + k.Only.Name
		// One object costs little to be read as it is now, and not from a cache that may be behind
		// what was read before a restart.
		if opts.ResourceVersion == "0" {
			opts.ResourceVersion = ""
		}
	}
	return s.clients[k].Get().MaxRetries(0).Resource(k.Resource).
		NamespaceIfScoped(k.Only.Namespace, k.Only.Namespace != "").
		SpecificallyVersionedParams(&opts, parameterCodec, schema.GroupVersion{Version: "v1"})
}

// list implements [api]. An API server may answer with all objects whatever the limit is, if
// it may do so from its cache. Where that is too much, what is left comes in pages.
func (s *server) list(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (*itemList, error) {
	list, err := s.page(ctx, k, opts)
	if errors.As(err, new(*tooLargeError)) {
		return s.pages(ctx, k, opts.Continue)
	}
	return list, err
}

// pages lists all objects from a continue token on, in pages as large as the bound allows.
func (s *server) pages(ctx context.Context, k *objects.Kind, from string) (*itemList, error) {
	all, opts := &itemList{}, metav1.ListOptions{Limit: pageSize, Continue: from}
	for {
		page, err := s.page(ctx, k, opts)
		tooLarge := errors.As(err, new(*tooLargeError))
		switch {
		case tooLarge && opts.Limit > 1:
			opts.Limit /= 2
			continue
		case tooLarge:
			return nil, fmt.Errorf("%w, also with limit=1", err)
		case err != nil:
			return nil, err
		}
		all.Items = append(all.Items, page.Items...)
		all.ResourceVersion, opts.Continue = page.ResourceVersion, page.Continue
		if opts.Continue == "" {
			return all, nil
		}
	}
}

// page lists objects with one request.
func (s *server) page(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (*itemList, error) {
	data, err := body(s.get(k, opts).Do(ctx))
	var large *tooLargeError
	if errors.As(err, &large) {
		return nil, large // without client-go's words around it
	}
	if err != nil {
		return nil, err
	}
	list, err := decodeList(k, data)
	if err == nil && list.Continue != "" && list.Continue == opts.Continue {
		return nil, errors.New("the listing does not end: a page continues with itself")
	}
	return list, err
}

// body returns the body of an answer, or the error that it says.
func body(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, err
	}
	return r.Raw()
}

func (*server) timing() timing {
	return timing{
		retryMin: 100 * time.Millisecond, retryMax: 30 * time.Second,
		absent: 10 * time.Second, idle: 5 * time.Minute, silence: maxSilence,
	}
}
