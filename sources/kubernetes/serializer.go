// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/sluice-net/sluice/sources/objects"
)

// serializer decodes what an API server sends about one kind of object: the
// events of a watch, the objects in them, and errors; in JSON, and if the kind has
// it in protobuf. It encodes nothing, as the agent writes no objects.
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
	switch i.object.Kind {
	case s.kind.Kind:
	case "Status":
		status, err := decodeStatus(data)
		gvk := metav1.SchemeGroupVersion.WithKind("Status")
		return status, &gvk, err
	default:
		return nil, nil, fmt.Errorf("an object of kind %q, not %s", i.object.Kind, s.kind.Kind)
	}
	return i, &schema.GroupVersionKind{Group: s.kind.Group, Version: s.kind.Version, Kind: s.kind.Kind}, nil
}

func decodeStatus(data []byte) (status *metav1.Status, err error) {
	status = &metav1.Status{}
	if !objects.IsProtobuf(data) {
		return status, json.Unmarshal(data, status)
	}
	raw, err := objects.ProtobufMessage(data)
	if err != nil {
		return nil, err
	}
	return status, status.Unmarshal(raw)
}

// protobufEvents decodes the events of a watch in protobuf, which have no envelope.
type protobufEvents struct{ serializer }

// Decode implements [runtime.Decoder].
func (protobufEvents) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return nil, nil, fmt.Errorf("decode %T: not an event of a watch", into)
	}
	return event, nil, event.Unmarshal(data)
}

// Encode implements [runtime.Encoder].
func (serializer) Encode(runtime.Object, io.Writer) error {
	return errors.New("encode: objects are only read")
}

// Identifier implements [runtime.Encoder].
func (serializer) Identifier() runtime.Identifier { return "read-only" }

// SupportedMediaTypes implements [runtime.NegotiatedSerializer].
func (s serializer) SupportedMediaTypes() []runtime.SerializerInfo {
	infos := []runtime.SerializerInfo{{
		MediaType:        runtime.ContentTypeJSON,
		MediaTypeType:    "application",
		MediaTypeSubType: "json",
		EncodesAsText:    true,
		Serializer:       s,
		StreamSerializer: &runtime.StreamSerializerInfo{
			EncodesAsText: true, Serializer: s,
			Framer: boundFramer{jsonserializer.Framer, maxObject},
		},
	}}
	if s.kind.Protobuf {
		infos = append(infos, runtime.SerializerInfo{
			MediaType:        runtime.ContentTypeProtobuf,
			MediaTypeType:    "application",
			MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer:       s,
			StreamSerializer: &runtime.StreamSerializerInfo{
				Serializer: protobufEvents{s},
				Framer:     boundFramer{protobuf.LengthDelimitedFramer, maxObject},
			},
		})
	}
	return infos
}

// EncoderForVersion implements [runtime.NegotiatedSerializer].
func (s serializer) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return s
}

// DecoderToVersion implements [runtime.NegotiatedSerializer].
func (s serializer) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return s
}
