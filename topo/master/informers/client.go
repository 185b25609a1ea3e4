package informers

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// protobuf is the API server's encoding of its own kinds: a quarter of the
// work of JSON. Custom resources have JSON only.
const protobuf = "application/vnd.kubernetes.protobuf"

// CoreClient is a client for core/v1.
func CoreClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+","+runtime.ContentTypeJSON
	c, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for core/v1: %w", err)
	}
	return c.RESTClient(), nil
}

// TopologyClient is a client for topology.heddle.dev.
func TopologyClient(config *rest.Config) (rest.Interface, error) {
	scheme, version := runtime.NewScheme(), v1alpha1.GroupVersion()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", version, err)
	}
	metav1.AddToGroupVersion(scheme, version)
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.APIPath, config.GroupVersion = "/apis", &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return c, nil
}
