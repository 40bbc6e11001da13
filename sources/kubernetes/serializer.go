// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"errors"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/sluice-net/sluice/sources/objects"
)

// serializer decodes what an API server sends about one kind of object: the
// events of a watch, the objects in them, and errors. It encodes nothing, as
// the agent writes no objects.
type serializer struct{ kind *objects.Kind }

var (
	_ runtime.Serializer           = serializer{}
	_ runtime.NegotiatedSerializer = serializer{}
)

// Decode implements [runtime.Decoder].
func (s serializer) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		return event, nil, json.Unmarshal(data, event)
	}
	i, err := decodeItem(s.kind, data)
	if err != nil {
		return nil, nil, err
	}
	if i.object.Kind == "Status" {
		status := &metav1.Status{}
		gvk := metav1.SchemeGroupVersion.WithKind("Status")
		return status, &gvk, json.Unmarshal(data, status)
	}
	return i, &schema.GroupVersionKind{Group: s.kind.Group, Version: s.kind.Version, Kind: s.kind.Kind}, nil
}

// Encode implements [runtime.Encoder].
func (serializer) Encode(runtime.Object, io.Writer) error {
	return errors.New("encode: objects are only read")
}

// Identifier implements [runtime.Encoder].
func (serializer) Identifier() runtime.Identifier { return "read-only" }

// SupportedMediaTypes implements [runtime.NegotiatedSerializer].
func (s serializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{
		MediaType:        runtime.ContentTypeJSON,
		MediaTypeType:    "application",
		MediaTypeSubType: "json",
		EncodesAsText:    true,
		Serializer:       s,
		StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: s, Framer: jsonserializer.Framer},
	}}
}

// EncoderForVersion implements [runtime.NegotiatedSerializer].
func (s serializer) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return s
}

// DecoderToVersion implements [runtime.NegotiatedSerializer].
func (s serializer) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return s
}
