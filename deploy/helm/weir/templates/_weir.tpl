{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef:
      name: {{ .Values.secretName }}
env:
  - name: WEIR_DATA_DIR
    value: /var/lib/weir
  - name: WEIR_ALLOWED_HOSTS
    value: {{ .Values.allowedHosts | quote }}
  - name: WEIR_TRUSTED_PROXIES
    value: {{ .Values.trustedProxies | quote }}
  - name: WEIR_SECURE_COOKIES
    value: "{{ if .Values.ingress.tlsSecretName }}1{{ else }}0{{ end }}"
volumeMounts:
  - name: data
    mountPath: /var/lib/weir
  - name: tmp
    mountPath: /tmp
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "weir.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: data
    {{- if .Values.dataClaim }}
    persistentVolumeClaim:
      claimName: {{ .Values.dataClaim }}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp
    emptyDir: {}
{{- end -}}
