package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// AnnotateNode merges annotations into the Node; nil takes one away. A version
// that is not "" must be the Node's. What was written is known when it returns.
func (c *Client) AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error {
	return c.patchNode(ctx, types.MergePatchType, map[string]any{
		"metadata": metadata{ResourceVersion: version, Annotations: annotations},
	})
}

// ShowAnnotations writes those annotations that the watched Node does not have yet; an
// empty value removes one. While the Node is not known it writes nothing: Changed
// receives once it is.
func (c *Client) ShowAnnotations(ctx context.Context, want map[string]string) error {
	n, _ := c.Node()
	if n == nil {
		return nil
	}
	changed := changes(n.Annotations, want)
	if len(changed) == 0 {
		return nil
	}
	return c.AnnotateNode(ctx, "", changed)
}

// changes returns what makes annotations as wanted; nil and an empty value remove one.
func changes(have, want map[string]string) map[string]*string {
	changed := map[string]*string{}
	for key, value := range want {
		old, has := have[key]
		switch {
		case value == "" && has:
			changed[key] = nil
		case value != old:
			changed[key] = &value
		}
	}
	return changed
}
