package informers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// protobuf is what the API server speaks for its own kinds: a quarter of the
// work of JSON. Custom resources have JSON only.
const protobuf = "application/vnd.kubernetes.protobuf"

// CoreClient is a client for core/v1.
func CoreClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+","+runtime.ContentTypeJSON
	return client(config, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
}

// TopologyClient is a client for topology.heddle.dev.
func TopologyClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return client(config, "/apis", v1alpha1.GroupVersion(), v1alpha1.AddToScheme)
}

// client has a scheme of its own: the clientset's knows every kind there is.
func client(
	config *rest.Config, path string, version schema.GroupVersion, add func(*runtime.Scheme) error,
) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", version, err)
	}
	metav1.AddToGroupVersion(scheme, version)
	config.APIPath, config.GroupVersion = path, &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return c, nil
}
