// An OpenID-certified provider for one client. PORT, WEIR (its address), GROUPS_FILE (JSON: account -> groups).
import { readFileSync } from 'node:fs'
import Provider from 'oidc-provider'

const { PORT, WEIR, GROUPS_FILE } = process.env
const provider = new Provider(`http://127.0.0.1:${PORT}`, {
  clients: [{
    client_id: 'weir',
    client_secret: 'a secret with & and =',
    redirect_uris: [`${WEIR}/oidc/callback`],
    post_logout_redirect_uris: [`${WEIR}/login`],
    backchannel_logout_uri: `${WEIR}/oidc/backchannel-logout`,
    backchannel_logout_session_required: true,
  }],
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'], email: ['email'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['only a test'] },
  pkce: { required: () => true },
  features: { backchannelLogout: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  fetch: (url, options) => fetch(url, { method: options.method, headers: options.headers, body: options.body }),
  findAccount: (context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: JSON.parse(readFileSync(GROUPS_FILE))[id] }),
  }),
})
provider.on('server_error', (context, error) => console.error(error))
provider.on('backchannel.error', (context, error) => console.error(error))
provider.listen(Number(PORT), '127.0.0.1', () => console.log('listening'))
